"""Reader of CBOR (RFC 8949), the format of omikuji's model files."""

from __future__ import annotations

import struct
from array import array
from typing import Any

import numpy as np

FLOATS = {25: struct.Struct(">e"), 26: struct.Struct(">f"), 27: struct.Struct(">d")}  # by additional information
CONSTANTS = {20: False, 21: True, 22: None}
NUMBERS = {24: ">u1", 25: ">u2", 26: ">u4", 27: ">i8", 0xF9: ">f2", 0xFA: ">f4", 0xFB: ">f8"}  # by initial byte
SIZES = bytes(1 if head < 24 else np.dtype(NUMBERS.get(head, "V0")).itemsize + (head in NUMBERS) for head in range(256))
LONG = 100  # lists of this many numbers or more become arrays
BLOCK = 2**16  # numbers that are decoded together
SHORT = 2**10  # a shorter run of numbers of the same size is followed by a block of mixed ones
INTEGER, NEGATIVE, BYTES, TEXT, ARRAY, MAP, _, SIMPLE = range(8)  # major types


def read_cbor(content: bytes) -> Any:
    """Decode a data item of integers, floats, strings, lists and maps, all of known length.

    Long lists of numbers that are not negative integers become arrays.
    """
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
    if kind == ARRAY and size >= LONG and SIZES[content[at]]:
        return read_numbers(content, at, size)
    items = []
    for _ in range(size if kind == ARRAY else 2 * size):
        item, at = read_item(content, at)
        items.append(item)
    return items if kind == ARRAY else dict(zip(items[::2], items[1::2], strict=True)), at


def read_numbers(content: bytes, at: int, size: int) -> tuple[np.ndarray, int]:
    """Decode consecutive numbers, and return the position after them."""
    data, sizes = np.frombuffer(content, np.uint8), np.frombuffer(SIZES, np.uint8)
    parts = [np.zeros(0, np.int64)]
    while size:
        step = SIZES[content[at]]
        if not step:
            raise ValueError("a list of numbers has something else in it")
        others = sizes[data[at : at + step * min(size, BLOCK) : step]] != step
        run = int(others.argmax()) if others.any() else len(others)  # numbers of the same size
        places = at + step * np.arange(run)
        at += run * step
        if run < SHORT:
            mixed = array("q")
            for _ in range(min(size - run, BLOCK)):
                mixed.append(at)
                at += SIZES[content[at]] or len(content)  # past the end if it is something else
            if at > len(content):
                raise ValueError("a list of numbers has something else in it, or is too short")
            places = np.concatenate([places, np.array(mixed, np.int64)])
        parts.append(numbers_at(data, places))
        size -= len(places)
    return np.concatenate(parts), at


def numbers_at(content: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Decode the numbers at these positions."""
    heads = content[places]
    values = np.zeros(len(places), np.float64 if heads.max() > 27 else np.int64)
    values[heads < 24] = heads[heads < 24]
    for head, kind in NUMBERS.items():
        if (rows := heads == head).any():
            bytes_of = places[rows, None] + 1 + np.arange(np.dtype(kind).itemsize)
            values[rows] = content[bytes_of].view(kind)[:, 0]
    return values
