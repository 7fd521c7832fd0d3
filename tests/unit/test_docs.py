"""What the documentation names exists: files, experiments, commands and their options."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

from zoo.commands.main import COMMANDS, OWN_PARSERS, TRAINING
from zoo.commands.static_index import find_function
from zoo.commands.usage import options_of
from zoo.core.shipped import shipped_experiments

ROOT = Path(__file__).parents[2]
FOLDERS = ("benchmarks", "tests", "zoo", "heads", "backbones", "datamodules", "callbacks", "experiments", "docs")
FILE = re.compile(rf"(?<![\w/.$-])((?:{'|'.join(FOLDERS)})/[\w./-]+\.(?:py|yaml|csv|md))\b")
PLACEHOLDERS = {"NAME", "ROW", "FILE"}
TEXTS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "experiments").rglob("*.yaml")]
SCRIPTS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)


def commands(text):
    """Words of each `zoo` command in the shell examples of a page."""
    for script in SCRIPTS.findall(text):
        for part in re.split(r"\n|\s[|&]+\s|;\s", script.replace("\\\n", " ")):
            if found := re.match(r"\s*(?:python -m )?zoo (.+)", part):
                yield shlex.split(found[1], comments=True)


def test_files_that_are_named_exist():
    for page in TEXTS:
        named = set(FILE.findall(page.read_text()))
        missing = {name for name in named if not (ROOT / name).exists() and Path(name).stem not in PLACEHOLDERS}
        assert not missing, page


def test_commands_in_examples_have_the_options_that_are_given():
    seen = 0
    for page in TEXTS:
        for words in commands(page.read_text()):
            name = " ".join(words[:2]) if words[0] == "data" else words[0]
            assert name in {*TRAINING, *OWN_PARSERS, *COMMANDS} or words[1:] in ([], ["--help"]), (page, words)
            if name in COMMANDS:
                known = {f"--{option.name}" for option in options_of(find_function(COMMANDS[name]))} | {"--help"}
                given = {word.partition("=")[0] for word in words if word.startswith("--")}
                assert given <= known, (page, words)
            seen += 1
    assert seen > 100


def test_experiments_in_examples_exist():
    known = {path.stem for path in (ROOT / "experiments").rglob("*.yaml")} | shipped_experiments().keys()
    for page in TEXTS:
        for words in commands(page.read_text()):
            for option, value in pairwise(words):
                if option == "--config" and "/" not in value and "." not in value:
                    assert value in known | PLACEHOLDERS, (page, words)


def test_links_between_pages_lead_somewhere():
    """As `mkdocs build --strict`, but for anchors."""
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).exists(), (page, target)
