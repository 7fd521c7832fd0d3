"""Imports go one way: between layers, between modules, and towards heavy libraries."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("backbones", "callbacks", "datamodules", "heads", "zoo")
# A module imports from its own layer and from those before it.
LAYERS = (
    "zoo.core",
    "datamodules",
    "backbones",
    "heads",
    "zoo.training",
    "zoo.analysis",
    "zoo.deploy",
    "callbacks",
    "zoo.sweeps",
    "zoo.service",
    "zoo.commands",
    "zoo",
)
PURE_TORCH = ("backbones", "heads")
LIGHTNING = {"pytorch_lightning", "lightning", "lightning_fabric"}
SLOW = {"transformers", "huggingface_hub", "datasets"}  # seconds each: imported inside functions
WEB = {"fastapi", "starlette", "uvicorn", "prometheus_client"}  # of the extra `serve`


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}
every_module = pytest.mark.parametrize("module", MODULES)


def imported(source: str, nested: bool = True) -> set[str]:
    """Modules that a source imports; with `nested`, also inside functions and type-checking blocks."""
    tree = ast.parse(source)
    found = set()
    for node in ast.walk(tree) if nested else tree.body:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports hide where a name comes from"
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {name if name in MODULES else str(node.module) for name in full}
    return found


def loaded(module: str, imports: set[str]) -> set[str]:
    """Modules that Python loads for these imports: packages around them too, but for those around the module itself."""
    parts = [name.split(".") for name in imports if name in MODULES]
    every = {".".join(name[: end + 1]) for name in parts for end in range(len(name))}
    return {name for name in every if not f"{module}.".startswith(f"{name}.")}


def layer(module: str) -> int:
    return next(i for i, name in enumerate(LAYERS) if module == name or module.startswith(f"{name}."))


def violations(module: str, imports: set[str]) -> set[str]:
    own = {name for name in imports if name.split(".")[0] in PACKAGES}
    wrong = {name for name in own if layer(name) > layer(module)}
    return wrong | {name for name in imports if module.startswith(PURE_TORCH) and name.split(".")[0] in LIGHTNING}


@every_module
def test_a_module_imports_from_lower_layers_only(module):
    assert violations(module, imported(MODULES[module].read_text("utf8"))) == set()


@every_module
def test_slow_libraries_are_imported_inside_functions(module):
    top = imported(MODULES[module].read_text("utf8"), nested=False)
    assert not SLOW & {name.split(".")[0] for name in top}


@every_module
def test_only_the_service_imports_web_libraries(module):
    found = imported(MODULES[module].read_text("utf8"))
    assert module.startswith("zoo.service.") or not WEB & {name.split(".")[0] for name in found}


def test_modules_have_no_import_cycles():
    graph = {name: loaded(name, imported(path.read_text("utf8"), nested=False)) for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the cycle


def test_packages_hold_no_implementation():
    allowed = ast.Import | ast.ImportFrom | ast.Assign | ast.Expr
    for name, path in MODULES.items():
        if path.name == "__init__.py":
            body = ast.parse(path.read_text("utf8")).body
            lazy = [node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
            inside = [inner for node in lazy for inner in node.body]
            assert all(isinstance(node, allowed) for node in [*body, *inside] if node not in lazy), name


def test_module_names_are_unique():
    names = [path.stem for path in MODULES.values() if path.stem not in ("__init__", "__main__", "base")]
    assert sorted(names) == sorted(set(names))


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        ("heads.linear", "import pytorch_lightning as pl", {"pytorch_lightning"}),
        (
            "heads.linear",
            "def f():\n    from zoo.training.ranking_metrics import RankingMetrics",
            {"zoo.training.ranking_metrics"},
        ),
        ("heads.linear", "from datamodules import Batch", set()),
        ("backbones.cnn", "from heads.base import Head", {"heads.base"}),
        ("callbacks.schedule", "from zoo.training.module import ZooModule", set()),
        ("callbacks.schedule", "import zoo.commands.predict", {"zoo.commands.predict"}),
        ("datamodules.base", "from backbones import CNN", {"backbones"}),
        ("zoo.core.files", "from datamodules.batch import Batch", {"datamodules.batch"}),
    ],
)
def test_the_rules_themselves(module, source, wrong):
    assert violations(module, imported(source)) == wrong
