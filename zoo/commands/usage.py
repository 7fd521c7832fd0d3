"""Help pages of commands, from the signatures and docstrings in their source files."""

from __future__ import annotations

import ast
import re
import shutil
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from zoo.commands.static_index import find_function

MAX_WIDTH = 100  # columns; longer lines are hard to read
OPTION_COLUMN = 26
SENTENCE_END = re.compile(r"(?<!\bet al)(?<!\be\.g)(?<!\bi\.e)(?<!\bvs)\. ")
METAVARS = {"int": "N", "float": "X", "list[str]": "PATH"}
METAVARS_BY_NAME = {
    **dict.fromkeys(("ckpt", "input"), "FILE"),
    **dict.fromkeys(("out", "path", "source"), "PATH"),
    **dict.fromkeys(("root", "experiments"), "DIR"),
    **dict.fromkeys(("gain", "keep"), "METRIC"),
    **{"trust": "MODULE", "by": "KEYS", "columns": "NAMES", "against": "ROW", "tokenizer": "NAME"},
}


class Docstring(NamedTuple):
    """Sections of a Google-style docstring."""

    paragraphs: list[str]
    arguments: dict[str, str]
    examples: list[str]

    @classmethod
    def of(cls, function: ast.FunctionDef) -> Docstring:
        about, *rest = re.split(r"\n\n(Args|Examples):\n", ast.get_docstring(function) or "")
        sections = dict(zip(rest[::2], rest[1::2], strict=True))
        arguments = re.findall(r"^    (\w+): (.*(?:\n        .*)*)", sections.get("Args", ""), re.MULTILINE)
        return cls(
            [" ".join(paragraph.split()) for paragraph in about.split("\n\n")],
            {name: " ".join(text.split()) for name, text in arguments},
            [line.strip() for line in sections.get("Examples", "").splitlines()],
        )


class Option(NamedTuple):
    """A parameter of a command."""

    name: str
    type: str
    default: str | None  # None if it is required
    is_positional: bool

    @property
    def metavar(self) -> str:
        if self.type.startswith("Literal["):
            return "{" + ",".join(map(str, ast.literal_eval(self.type.removeprefix("Literal")))) + "}"
        if self.default == "True":
            return "{true,false}"
        first = self.type.split(" | ")[0]
        return METAVARS_BY_NAME.get(self.name) or METAVARS.get(first) or self.name.rsplit("_", 1)[-1].upper()

    @property
    def is_flag(self) -> bool:
        return self.default == "False"

    @property
    def usage(self) -> str:
        if self.is_positional:
            return f"{self.name.upper()} [...]" if self.type == "list[str]" else self.name.upper()
        return f"--{self.name}" if self.is_flag else f"--{self.name} {self.metavar}"

    def describe(self, text: str) -> str:
        """Append the default, or that the option is required."""
        text = text.rstrip(".")
        if self.default is None:
            return text if self.is_positional else f"{text} (required)"
        if self.is_flag or self.default == "None":
            return text
        shown = ast.literal_eval(self.default)
        return f"{text} (default: {str(shown).lower() if isinstance(shown, bool) else shown})"


def terminal_width() -> int:
    return min(shutil.get_terminal_size().columns, MAX_WIDTH)


def command_help(target: str, name: str) -> str:
    """Help page of the command at `module:function`, which is not imported."""
    function = find_function(target)
    doc, options = Docstring.of(function), list(options_of(function))
    required = [option.usage for option in options if option.default is None]
    usage = f"usage: zoo {name} {' '.join([*required, '[options]'])}"
    rows = {
        positional: {o.usage: o.describe(doc.arguments[o.name]) for o in options if o.is_positional is positional}
        for positional in (True, False)
    }
    return page(
        textwrap.fill(usage, terminal_width(), subsequent_indent=" " * 12, break_on_hyphens=False),
        *(textwrap.fill(paragraph, terminal_width()) for paragraph in doc.paragraphs),
        section("arguments", rows[True]),
        section("options", rows[False] | {"-h, --help": "show this help and exit"}),
        listing("examples", doc.examples),
    )


def options_of(function: ast.FunctionDef) -> Iterator[Option]:
    """Parameters in order: those before `*` are positional, the others are options."""
    arguments = function.args
    yield from (Option(one.arg, annotation(one), None, True) for one in arguments.args)
    for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        yield Option(one.arg, annotation(one), None if default is None else ast.unparse(default), False)


def annotation(argument: ast.arg) -> str:
    assert argument.annotation is not None
    return ast.unparse(argument.annotation)


def summary(target: str) -> str:
    """First sentence of a command's docstring, as an entry of a list of commands."""
    text = first_sentence(ast.get_docstring(find_function(target)))
    return text[0].lower() + text[1:]


def first_sentence(text: str | None) -> str:
    return SENTENCE_END.split(" ".join((text or "").split()))[0].rstrip(".")


def page(*parts: str) -> str:
    return "\n\n".join(part for part in parts if part) + "\n"


def section(title: str, rows: Mapping[str, str], column: int = OPTION_COLUMN, width: int | None = None) -> str:
    """A title above two columns; a left cell that is too long gets a line of its own."""
    if not rows:
        return ""
    lines = [f"{title}:"]
    for left, text in rows.items():
        wrapped = textwrap.wrap(text, max((width or terminal_width()) - column, 20), break_on_hyphens=False) or [""]
        if len(left) > column - 4:
            lines.append(f"  {left}")
        else:
            lines.append(f"  {left:{column - 2}}{wrapped.pop(0)}")
        lines += [" " * column + line for line in wrapped]
    return "\n".join(line.rstrip() for line in lines)


def listing(title: str, lines: Iterable[str]) -> str:
    return "\n".join([f"{title}:", *(f"  {line}" for line in lines)])
