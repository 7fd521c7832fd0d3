"""YAML settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zoo.core.errors import UserError, first_line


def parse_yaml(text: str) -> Any:
    """Parse YAML; raises ValueError if it is invalid."""
    import yaml

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, if available
    try:
        return yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from error


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
