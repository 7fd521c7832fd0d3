"""Axes of a sweep: values of a grid, ranges of a search, and the names of runs."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from zoo.core.errors import UserError

if TYPE_CHECKING:
    from optuna.trial import Trial

GRID_EXAMPLE = "model.head.samples=1,5,10"
SEARCH_EXAMPLE = "model.optimizer.lr=1e-4..1e-2:log, model.head.samples=1..20 or model.head=Linear|LSAN"
KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
RANGE = re.compile(r"(?P<low>[^.].*?|\.\d.*?)\.\.(?P<high>.+?)(?P<log>:log)?")
WHOLE = re.compile(r"[+-]?\d+")
OPENING, CLOSING, QUOTES = "[{(", "]})", "'\""
ILLEGAL = re.compile(r"[^A-Za-z0-9._+-]+")  # in folder names of some file systems
NAME_LENGTH = 80  # characters, without the hash

Setting = Mapping[str, Any]  # value by the name of the axis


@dataclass(frozen=True)
class Axis:
    """A setting that is varied.

    Args:
        keys: settings of `zoo fit`, which all get the same value.
        choices: values in YAML; empty for a range.
        low: lower bound of a range.
        high: upper bound of a range.
        log: search the range on a logarithmic scale.
    """

    keys: tuple[str, ...]
    choices: tuple[str, ...] = ()
    low: float = 0
    high: float = 0
    log: bool = False

    @property
    def name(self) -> str:
        return "+".join(self.keys)

    @property
    def text(self) -> str:
        """Canonical form, to tell whether a later command has the same axis."""
        return json.dumps(self.choices) if self.choices else f"{self.low!r}..{self.high!r}{':log' * self.log}"

    def options(self, value: Any) -> list[str]:
        return [f"--{key}={text_of(value)}" for key in self.keys]

    def suggest(self, trial: Trial) -> Any:
        """The value of a trial, suggested by its study if it has none yet."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(self.name, self.low, self.high, log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)


def text_of(value: Any) -> str:
    """A value as written on the command line."""
    return value if isinstance(value, str) else json.dumps(value)


def parse_grid(key: str, values: str | Sequence[Any]) -> Axis:
    texts = split_values(values) if isinstance(values, str) else [text_of(value) for value in values]
    return Axis(parse_keys(key, GRID_EXAMPLE), checked_choices(key, texts, GRID_EXAMPLE))


def parse_search(key: str, values: str | Sequence[Any]) -> Axis:
    keys = parse_keys(key, SEARCH_EXAMPLE)
    if not isinstance(values, str):
        return Axis(keys, checked_choices(key, [text_of(value) for value in values], SEARCH_EXAMPLE, least=2))
    if match := RANGE.fullmatch(values):
        return parse_range(keys, match)
    texts = split_values(values, "|")
    choices = texts if len(texts) > 1 else split_values(values)
    return Axis(keys, checked_choices(key, choices, SEARCH_EXAMPLE, least=2))


def parse_range(keys: tuple[str, ...], match: re.Match[str]) -> Axis:
    ends, log = (match["low"], match["high"]), bool(match["log"])
    try:
        low, high = (int(end) if all(map(WHOLE.fullmatch, ends)) else float(end) for end in ends)
    except ValueError:
        raise UserError(f"{'+'.join(keys)}={match[0]}: not a range of numbers, such as {SEARCH_EXAMPLE}") from None
    if not -math.inf < low < high < math.inf or (log and low <= 0):
        need = "finite bounds, the lower one first, and above 0 with :log"
        raise UserError(f"{'+'.join(keys)}={match[0]}: a range needs {need}, such as {SEARCH_EXAMPLE}")
    return Axis(keys, low=low, high=high, log=log)


def parse_keys(key: str, example: str) -> tuple[str, ...]:
    """Split `a+b`, two settings that change together."""
    keys = tuple(key.split("+"))
    if wrong := [part for part in keys if not KEY.fullmatch(part)]:
        raise UserError(f"{key!r}: {wrong[0]!r} is not a setting; expected something like {example}")
    return keys


def checked_choices(key: str, texts: Sequence[str], example: str, least: int = 1) -> tuple[str, ...]:
    if len(texts) < least or not all(texts):
        raise UserError(f"{key} has too few values or an empty one; expected something like {example}")
    if len(set(texts)) < len(texts):
        raise UserError(f"{key} has duplicate values: {', '.join(texts)}")
    return tuple(texts)


def parse_texts(texts: Iterable[str], search: bool) -> list[Axis]:
    """Parse axes from the command line, each as `key=values`."""
    parse, example = (parse_search, SEARCH_EXAMPLE) if search else (parse_grid, GRID_EXAMPLE)
    axes = []
    for text in texts:
        key, given, values = text.partition("=")
        if not given:
            raise UserError(f"{text!r} has no values; expected something like {example}")
        axes.append(parse(key, values))
    return axes


def split_values(text: str, separator: str = ",") -> list[str]:
    """Split at separators that are neither in brackets nor in quotes."""
    parts, depth, quote, before = [""], 0, "", separator
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES and before in f"{separator},:{OPENING}":  # otherwise an apostrophe, as in YAML
            quote = character
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
        elif character == separator and depth == 0:
            parts.append("")
            before = separator
            continue
        parts[-1] += character
        before = before if character == " " else character
    if quote or depth:
        raise UserError(f"{text!r} has an unclosed bracket or quote")
    return [part.strip() for part in parts]


def grid_settings(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """All combinations in order; the last axis changes fastest."""
    names = [axis.name for axis in axes]
    return [dict(zip(names, values, strict=True)) for values in product(*(axis.choices for axis in axes))]


def first_setting(axes: Sequence[Axis]) -> dict[str, Any]:
    return {axis.name: axis.choices[0] if axis.choices else axis.low for axis in axes}


def options_of(axes: Sequence[Axis], setting: Setting) -> list[str]:
    """A setting as options of `zoo fit`."""
    return [option for axis in axes for option in axis.options(setting[axis.name])]


def short_keys(axes: Sequence[Axis]) -> dict[str, str]:
    """Shortest suffix of each axis's first key that is unique among the axes."""
    parts = {axis.name: axis.keys[0].split(".") for axis in axes}
    for length in range(1, max(map(len, parts.values())) + 1):
        short = {name: ".".join(key[-length:]) for name, key in parts.items()}
        if len(set(short.values())) == len(short):
            return short
    return {axis.name: axis.name for axis in axes}


def describe(axes: Sequence[Axis], setting: Setting) -> str:
    """A setting in readable form."""
    return ", ".join(f"{key}={short_text(setting[name])}" for name, key in short_keys(axes).items())


def run_name(experiment: str, axes: Sequence[Axis], setting: Setting) -> str:
    """Folder name that is unique within a sweep."""
    values = [f"{key}-{short_text(setting[name])}" for name, key in short_keys(axes).items()]
    readable = ILLEGAL.sub("-", "_".join([experiment, *values]))
    content = json.dumps(options_of(axes, setting)).encode()
    return f"{readable[:NAME_LENGTH].strip('.-_')}_{hashlib.sha256(content).hexdigest()[:6]}"


def short_text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else text_of(value)
