"""Conventions of the source that no linter knows."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LONGEST = 350  # lines of a module
OPTION = re.compile(r"(?<![\w-])--[a-z]\w*")
COMMAND_LINE = ("zoo/commands", "zoo/sweeps")  # sweeps write command lines
FILES = [
    file for name in ("backbones", "callbacks", "datamodules", "heads", "zoo") for file in (ROOT / name).rglob("*.py")
]


def test_modules_are_short():
    sizes = {str(file.relative_to(ROOT)): file.read_text("utf8").count("\n") for file in FILES}
    assert {name: size for name, size in sizes.items() if size > LONGEST} == {}


def options_in(source: str) -> list[str]:
    """Options in texts, without docstrings."""
    tree = ast.parse(source)
    statements = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    texts = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    return [option for node in texts if node not in statements for option in OPTION.findall(node.value)]


def test_only_the_command_line_knows_its_options():
    found = {str(file.relative_to(ROOT)): options_in(file.read_text("utf8")) for file in FILES}
    library = {name: options for name, options in found.items() if not name.startswith(COMMAND_LINE)}
    assert {name: options for name, options in library.items() if options} == {
        "zoo/analysis/examples.py": ["--a"]
    }  # CSS


def test_options_are_found():
    assert options_in('"""uses --a"""\nraise E(f"set {x}: `--data.b=1`, or --c")\nx = "a--d"') == ["--data", "--c"]
