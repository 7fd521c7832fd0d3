"""MkDocs hooks: equations as MathML, and pages that are generated from the code.

Equations become MathML at build time, which every current browser draws without JavaScript or fonts from the network.
Docstrings may use reStructuredText's `.. math::`, as torch does.
"""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import sys
import textwrap
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r'<div class="arithmatex">\\\[(.*?)\\\]</div>', re.DOTALL)  # what arithmatex writes
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
CORPORA = {"reuters": "Reuters-21578", "eurlex": "EURLEX57K", "bibtex": "Bibtex", "delicious": "Delicious"}
# All commands in one process: starting one takes seconds.
PRINT_HELP = """
import contextlib, io, json
from zoo.commands.main import COMMANDS, OWN_PARSERS, main
pages = {}
for command in [*OWN_PARSERS, *COMMANDS]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.suppress(SystemExit):
        main([*command.split(), "--help"])
    pages[command] = out.getvalue()
print(json.dumps(pages))
"""


class SphinxMath(Preprocessor):
    """Turns `.. math::` blocks, :math:`roles` and ```math fences into the $ forms of arithmatex."""

    def run(self, lines: list[str]) -> list[str]:
        text = re.sub(r":math:`([^`]+)`", r"$\1$", "\n".join(lines))
        text = re.sub(r"^```math\n(.*?)^```$", r"$$\n\1$$", text, flags=re.MULTILINE | re.DOTALL)
        block = re.compile(r"^( *)\.\. math::(.*\n(?:\s*\n|\1 +\S.*(?:\n|$))*)", re.MULTILINE)
        text = block.sub(lambda found: f"\n{found[1]}$$\n{aligned(found[2])}\n{found[1]}$$\n\n", text + "\n")
        return text.split("\n")


class SphinxMathExtension(Extension):
    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802
        md.preprocessors.register(SphinxMath(md), "sphinx-math", 35)  # before code fences are taken out, at 25


def aligned(body: str) -> str:
    r"""Sphinx aligns at & and breaks lines at \\ without being asked."""
    lines = textwrap.dedent(body).strip()
    return rf"\begin{{split}}{lines}\end{{split}}" if "&" in lines else lines


def on_config(config: Any) -> Any:
    config.markdown_extensions.append(SphinxMathExtension())
    return config


def on_post_page(output: str, page: Any, config: Any) -> str:
    output = BLOCK.sub(lambda found: mathml(found[1], block=True), output)
    return INLINE.sub(lambda found: mathml(found[1], block=False), output)


def mathml(latex: str, block: bool) -> str:
    source = html.unescape(latex).strip().replace("{aligned}", "{split}")  # the same, and latex2mathml knows it
    drawn = convert(source, display="block" if block else "inline")
    return f'<div class="math-block">{drawn}</div>' if block else drawn


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    if "<!-- experiments -->" in markdown:
        markdown = markdown.replace("<!-- experiments -->", experiment_tables())
    if "<!-- help -->" in markdown:
        markdown = markdown.replace("<!-- help -->", help_pages())
    return re.sub(r"(\d) ± (\d)", "\\1\u00a0±\u00a0\\2", markdown)  # a mean and its deviation stay on one line


def experiment_tables() -> str:
    """A table for each corpus, from the leading comments of experiment files."""
    groups: dict[str, list[str]] = defaultdict(list)
    for file in sorted((ROOT / "experiments").glob("*.yaml")):
        corpus = CORPORA.get(file.stem.rpartition("_")[2], "Any corpus")
        groups[corpus].append(f"| `{file.stem}` | {leading_comment(file)} |")
    for file in sorted((ROOT / "experiments" / "sweeps").glob("*.yaml")):
        groups["Sweeps"].append(f"| `sweeps/{file.stem}` | {leading_comment(file)} |")
    return "\n\n".join(
        f"## {name}\n\n| file | what it is |\n|---|---|\n" + "\n".join(rows) for name, rows in groups.items()
    )


def leading_comment(file: Path) -> str:
    comment = []
    for line in file.read_text("utf8").splitlines():
        if not line.startswith("#"):
            break
        comment.append(line.lstrip("# "))
    text = " ".join(comment).replace("|", "\\|")
    return re.sub(r"docs/([\w/-]+)\.md", r"[\1](../\1.md)", text)


@cache
def help_pages() -> str:
    """What `--help` of each command prints."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_HELP],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "100", "NO_COLOR": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"`python -m zoo --help` failed: {done.stderr[-2000:]}")
    pages = json.loads(done.stdout.splitlines()[-1])
    return "\n\n".join(f"### `zoo {name}`\n\n```text\n{text.strip()}\n```" for name, text in pages.items())
