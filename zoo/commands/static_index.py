"""Finds classes and functions in source files without importing them, and so without importing torch."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

PACKAGES = ("zoo", "heads", "backbones", "datamodules", "callbacks")


class Definition(NamedTuple):
    """A class definition in a source file."""

    module: str
    node: ast.ClassDef

    @property
    def doc(self) -> str:
        return ast.get_docstring(self.node) or ""

    @property
    def path(self) -> str:
        return f"{self.module}.{self.node.name}"


@cache
def parse_module(module: str) -> ast.Module:
    spec = find_spec(module)
    assert spec is not None, module
    assert spec.origin is not None, module
    return ast.parse(Path(spec.origin).read_text("utf8"))


@cache
def global_names(module: str) -> dict[str, str]:
    """Dotted path of each class and each import of a module, including imports for type checkers."""
    found = {}
    body = parse_module(module).body
    blocks = [node.body for node in body if isinstance(node, ast.If)]
    for node in (*body, *(inner for block in blocks for inner in block)):
        if isinstance(node, ast.ClassDef):
            found[node.name] = f"{module}.{node.name}"
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                found |= {alias.asname: alias.name} if alias.asname else {first: first}
    return found


@cache
def find_class(path: str) -> Definition | str:
    """The class at a dotted path, which may be a re-export; the path itself if it is in another library."""
    module, _, name = path.rpartition(".")
    if module.split(".")[0] not in PACKAGES:
        return path
    for node in parse_module(module).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return Definition(module, node)
    return find_class(global_names(module)[name]) if name in global_names(module) else path


def lineage(found: Definition) -> Iterator[Definition | str]:
    """The class and its bases, depth first; bases in other libraries by their paths."""
    yield found
    for base in found.node.bases:
        first, _, rest = ast.unparse(base).partition("[")[0].partition(".")
        path = global_names(found.module).get(first, first)
        above = find_class(f"{path}.{rest}" if rest else path)
        if isinstance(above, Definition):
            yield from lineage(above)
        else:
            yield above


def is_abstract(found: Definition) -> bool:
    """Whether an abstract method has no implementation."""
    seen: dict[str, bool] = {}
    for one in lineage(found):
        for node in one.node.body if isinstance(one, Definition) else ():
            if isinstance(node, ast.FunctionDef):
                seen.setdefault(node.name, any("abstract" in ast.unparse(d) for d in node.decorator_list))
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    seen.setdefault(ast.unparse(target), False)
    return any(seen.values())


def concrete_classes(module: str, base: str) -> Iterator[Definition]:
    """Subclasses of `base` that a module offers; of a base in another library, all subclasses of its module."""
    library = base.partition(":")[0]
    prefix = base.replace(":", ".") if library.split(".")[0] in PACKAGES else library
    offered = [name for node in parse_module(module).body for name in names_in_all(node)]
    for name in sorted(offered or global_names(module)):
        found = find_class(global_names(module).get(name, f"{module}.{name}"))
        if isinstance(found, Definition) and not is_abstract(found):
            paths = [one if isinstance(one, str) else one.path for one in lineage(found)]
            if any(f"{path}.".startswith(f"{prefix}.") for path in paths):
                yield found


def names_in_all(node: ast.stmt) -> list[str]:
    """Names in `__all__ = [...]`."""
    if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
        return list(ast.literal_eval(node.value))
    return []


def find_function(target: str) -> ast.FunctionDef:
    """The function at `module:name`."""
    module, _, name = target.partition(":")
    functions = (node for node in parse_module(module).body if isinstance(node, ast.FunctionDef))
    return next(node for node in functions if node.name == name)
