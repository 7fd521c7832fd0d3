"""Package attributes that are imported on first use (PEP 562)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any


def lazy_names(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make `__getattr__` and `__dir__` for a package whose imports are under `if TYPE_CHECKING:`.

    Type checkers and editors read these imports; at run time a name is imported on first use, so that importing the
    package is cheap::

        if TYPE_CHECKING:
            from heads.linear import Linear

        __all__ = ["Linear"]
        __getattr__, __dir__ = lazy_names(__name__)
    """
    module = sys.modules[package]

    def get(name: str) -> Any:
        origin = imports_for_typing(Path(str(module.__file__))).get(name)
        if origin is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(origin[0]), origin[1])
        setattr(module, name, value)  # Python does not call `__getattr__` again
        return value

    def names() -> list[str]:
        return sorted({*vars(module), *vars(module).get("__all__", ())})

    return get, names


@cache
def imports_for_typing(file: Path) -> dict[str, tuple[str, str]]:
    """Map each name that a file imports under `if TYPE_CHECKING:` to its module and its name there."""
    found: dict[str, tuple[str, str]] = {}
    for block in ast.parse(file.read_text("utf8")).body:
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING":
            for node in block.body:
                if isinstance(node, ast.ImportFrom) and node.module:
                    found |= {alias.asname or alias.name: (node.module, alias.name) for alias in node.names}
    return found
