"""Reader of CBOR (RFC 8949), the format of omikuji's model files."""

from __future__ import annotations

import struct
from typing import Any

FLOATS = {25: struct.Struct(">e"), 26: struct.Struct(">f"), 27: struct.Struct(">d")}  # by additional information
CONSTANTS = {20: False, 21: True, 22: None}
INTEGER, NEGATIVE, BYTES, TEXT, ARRAY, MAP, _, SIMPLE = range(8)  # major types


def read_cbor(content: bytes) -> Any:
    """Decode a data item of integers, floats, strings, lists and maps, all of known length."""
    return read_item(content, 0)[0]


def read_item(content: bytes, at: int) -> tuple[Any, int]:
    """The item at a position, and the position after it."""
    kind, size = content[at] >> 5, content[at] & 31
    at += 1
    if kind == SIMPLE:
        if size in FLOATS:
            return FLOATS[size].unpack_from(content, at)[0], at + FLOATS[size].size
        return CONSTANTS[size], at
    if size >= 24:
        width = 1 << size - 24
        size, at = int.from_bytes(content[at : at + width]), at + width
    if kind in (INTEGER, NEGATIVE):
        return size if kind == INTEGER else -1 - size, at
    if kind in (BYTES, TEXT):
        text = content[at : at + size]
        return text if kind == BYTES else text.decode(), at + size
    if kind not in (ARRAY, MAP):
        raise ValueError(f"CBOR items of type {kind} are not supported")
    items = []
    for _ in range(size if kind == ARRAY else 2 * size):
        item, at = read_item(content, at)
        items.append(item)
    return items if kind == ARRAY else dict(zip(items[::2], items[1::2], strict=True)), at
