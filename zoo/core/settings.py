"""YAML settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.core.errors import UserError, first_line

MAX_SIZE = 10**6  # values of a file, with aliases expanded


def parse_yaml(text: str) -> Any:
    """Parse YAML; raises ValueError if it is invalid, or has a key twice, of which YAML would keep the last."""
    import yaml

    make: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, if available
    try:
        loader = make(text)
        try:
            node = loader.get_single_node()
            check_node(node, {})
            return None if node is None else loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def check_node(node: Any, sizes: dict[int, int]) -> int:
    """Refuse a key that appears twice, and aliases that refer to themselves or expand to too much; returns the size.

    Args:
        node: a node of the parsed document, before its aliases are expanded.
        sizes: sizes of the nodes that are checked already, by id; 0 while a node is being checked.
    """
    if node is None or isinstance(node.value, str):
        return 1
    if (known := sizes.get(id(node))) is not None:
        if not known:
            raise ValueError(f"line {node.start_mark.line + 1} refers to itself")
        return known
    sizes[id(node)] = 0
    total, seen = 1, set()
    for item in node.value:
        key, value = item if isinstance(item, tuple) else (None, item)
        if key is not None and isinstance(key.value, str):
            if (key.tag, key.value) in seen:
                raise ValueError(f"line {key.start_mark.line + 1}: {key.value!r} is given twice")
            seen.add((key.tag, key.value))
        total += check_node(key, sizes) + check_node(value, sizes)
    if total > MAX_SIZE:
        raise ValueError(f"it has more than {MAX_SIZE:,} values")
    sizes[id(node)] = total
    return total


def read_yaml(file: Path) -> Any:
    try:
        return parse_yaml(file.read_text("utf8"))
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not UTF-8 text") from error
    except ValueError as error:
        raise UserError(f"{file} is not valid YAML: {first_line(error)}") from error


def flattened(settings: Any, prefix: str = "") -> dict[str, Any]:
    """Flatten settings to dotted keys, as in overrides: without `class_path` and `init_args`, stages by name.

    The key of a class maps to its short name: `model.head` to `Linear`.
    """
    if isinstance(settings, list) and settings and all(isinstance(item, dict) and "name" in item for item in settings):
        settings = {item["name"]: {key: item[key] for key in item if key != "name"} for item in settings}
    found: dict[str, Any] = {}
    if isinstance(settings, list) and any(isinstance(item, dict) and "class_path" in item for item in settings):
        for item in settings:  # such as callbacks: an override applies to the last one that has the key
            found |= flattened(item, prefix)
        return found
    if not isinstance(settings, dict) or not settings:
        return {prefix: settings}
    inner = dict(settings)
    if "class_path" in inner:
        found[prefix] = str(inner.pop("class_path")).rpartition(".")[2]
        inner |= {**(inner.pop("init_args", None) or {}), **(inner.pop("dict_kwargs", None) or {})}
    for key, value in inner.items():
        found |= flattened(value, f"{prefix}.{key}" if prefix else str(key))
    return found
