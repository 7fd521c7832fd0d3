"""Which package may know which: models stay plain torch, data knows nothing of models."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("backbones", "callbacks", "datamodules", "heads", "zoo")
FILES = {package: sorted((ROOT / package).rglob("*.py")) for package in PACKAGES}
every_file = pytest.mark.parametrize(
    ("package", "path"),
    [(package, path) for package, paths in FILES.items() for path in paths],
    ids=lambda value: "" if isinstance(value, str) else str(value.relative_to(ROOT)),
)

# Packages that may not be imported at all, and the only modules that may be of packages that may.
FORBIDDEN = {
    "backbones": {"pytorch_lightning", "lightning", "zoo", "callbacks", "heads"},
    "heads": {"pytorch_lightning", "lightning", "zoo", "callbacks"},
    "datamodules": {"zoo", "callbacks", "heads", "backbones"},
    "callbacks": {"zoo"},
    "zoo": set(),
}
ALLOWED = {
    "backbones": {"datamodules": {"datamodules.bags", "datamodules.batch", "datamodules.errors", "datamodules.hub"}},
    "heads": {"datamodules": {"datamodules.batch", "datamodules.errors"}},
}


def imported(source, package):
    """Modules that the text imports anywhere, also inside functions; relative ones in full."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = ".".join(filter(None, [package if node.level else "", node.module or ""]))
            # `from datamodules import batch` names a module as well
            inside = ROOT / module.replace(".", "/")
            found |= {
                f"{module}.{alias.name}" if (inside / f"{alias.name}.py").is_file() else module for alias in node.names
            }
    return found


def complaints(package, modules):
    wrong = {module for module in modules if module.split(".")[0] in FORBIDDEN[package]}
    for other, allowed in ALLOWED.get(package, {}).items():
        wrong |= {module for module in modules if module.split(".")[0] == other and module not in allowed}
    return wrong


@every_file
def test_imports_stay_within_bounds(package, path):
    assert complaints(package, imported(path.read_text("utf8"), package)) == set()


@every_file
def test_the_library_of_encoders_is_imported_where_it_is_needed(package, path):
    # it takes seconds: not in a module's own body, but for types
    for node in ast.parse(path.read_text("utf8")).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
            assert not {"transformers", "huggingface_hub", "datasets"} & {name.split(".")[0] for name in names}


def test_all_packages_were_walked():
    assert all(len(paths) >= 2 for paths in FILES.values())
    assert "datamodules.batch" in imported((ROOT / "heads" / "base.py").read_text("utf8"), "heads")


@pytest.mark.parametrize(
    ("package", "source", "wrong"),
    [
        ("heads", "import pytorch_lightning as pl", {"pytorch_lightning"}),
        ("heads", "def f():\n    from zoo.metrics import RankingMetrics", {"zoo.metrics"}),
        ("heads", "from datamodules import Batch", {"datamodules"}),
        ("heads", "from datamodules import batch", set()),
        ("backbones", "from datamodules.vocab import PAD", {"datamodules.vocab"}),
        ("backbones", "from heads.base import bce", {"heads.base"}),
        ("heads", "from .base import bce", set()),
        ("callbacks", "import zoo.metrics", {"zoo.metrics"}),
        ("datamodules", "from backbones import CNN", {"backbones"}),
    ],
)
def test_the_rules_themselves(package, source, wrong):
    assert complaints(package, imported(source, package)) == wrong
