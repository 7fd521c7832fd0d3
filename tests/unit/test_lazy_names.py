"""Packages import their names on first use, and lack none of them."""

import inspect
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name

import pytest

import zoo
from zoo.commands.static_index import concrete_classes
from zoo.core.lazy import imports_for_typing
from zoo.core.parts import KINDS

ROOT = Path(__file__).parents[2]
LAZY = [
    ".".join(path.parent.relative_to(ROOT).parts)
    for package in ("backbones", "callbacks", "datamodules", "heads", "zoo")
    for path in sorted((ROOT / package).rglob("__init__.py"))
    if "lazy_names(__name__)" in path.read_text("utf8")
]


@pytest.mark.parametrize("package", LAZY)
def test_the_names_are_those_that_type_checkers_see(package):
    module = import_module(package)
    assert sorted(imports_for_typing(Path(module.__file__))) == sorted(module.__all__)
    assert set(module.__all__) <= set(dir(module))
    assert all(getattr(module, name) is not None for name in module.__all__)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nothing'"):
        _ = module.Nothing


@pytest.mark.parametrize("title", KINDS)
def test_the_static_index_finds_what_importing_finds(title):
    module, base = import_module(KINDS[title].module), resolve_name(KINDS[title].base)
    classes = inspect.getmembers(module, inspect.isclass)
    offered = getattr(module, "__all__", None) or [name for name, one in classes if one.__module__ == module.__name__]
    expected = {n: c for n, c in classes if n in offered and issubclass(c, base) and not inspect.isabstract(c)}
    found = {one.node.name: one.doc for one in concrete_classes(*KINDS[title])}
    assert found == {name: inspect.cleandoc(one.__doc__ or "") for name, one in expected.items()}
    assert found


def test_version():
    assert zoo.__version__[0].isdigit()
