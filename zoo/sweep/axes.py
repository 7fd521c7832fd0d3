"""What a sweep varies: the values of `--grid`, the ranges of `--search`, and names for the settings they make."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from datamodules.errors import UserError

if TYPE_CHECKING:
    from optuna.trial import Trial

GRID_EXAMPLE = "--grid model.head.samples=1,5,10"
SEARCH_EXAMPLE = "--search model.optimizer.lr=1e-4..1e-2:log, model.head.samples=1..20 or model.head=Linear|LSAN"
KEY = re.compile(r"[A-Za-z_]\w*(\.\w+)*")
RANGE = re.compile(r"(?P<low>[^.].*?|\.\d.*?)\.\.(?P<high>.+?)(?P<log>:log)?")
WHOLE = re.compile(r"[+-]?\d+")
OPENING, CLOSING, QUOTES = "[{(", "]})", "'\""
ILLEGAL = re.compile(r"[^A-Za-z0-9._+-]+")  # in the name of a folder, on some file system
NAME_LENGTH = 80  # characters of a name before its hash

Setting = Mapping[str, Any]  # an axis's name to its value


@dataclass(frozen=True)
class Axis:
    """One thing that is varied.

    Args:
        keys: settings of `zoo fit` that all get the same value.
        choices: values as YAML texts; none for a range.
        low: where a range begins.
        high: where it ends.
        log: the range is searched by orders of magnitude.
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
        """What was asked for, in one form: to see whether a later command asks for the same."""
        return json.dumps(self.choices) if self.choices else f"{self.low!r}..{self.high!r}{':log' * self.log}"

    def options(self, value: Any) -> list[str]:
        return [f"--{key}={text_of(value)}" for key in self.keys]

    def suggest(self, trial: Trial) -> Any:
        """The value of a trial: that which it has, or one that its study suggests."""
        if self.choices:
            return trial.suggest_categorical(self.name, self.choices)
        if isinstance(self.low, int) and isinstance(self.high, int):
            return trial.suggest_int(self.name, self.low, self.high, log=self.log)
        return trial.suggest_float(self.name, self.low, self.high, log=self.log)


def text_of(value: Any) -> str:
    """A value as it stands on a command line."""
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
        raise UserError(f"--search {match[0]}: a range is of numbers, as in {SEARCH_EXAMPLE}") from None
    finite = math.isfinite(low) and math.isfinite(high)
    if not finite or not low < high or (log and low <= 0):
        order = "a logarithmic one begins above 0" if low < high else "the end must be above the beginning"
        why = order if finite else "its ends are finite"
        raise UserError(f"--search {'+'.join(keys)}={match[0]} is no range: {why}, as in {SEARCH_EXAMPLE}")
    return Axis(keys, low=low, high=high, log=log)


def parse_keys(key: str, example: str) -> tuple[str, ...]:
    """`a+b` are two settings that change together."""
    keys = tuple(key.split("+"))
    if wrong := [part for part in keys if not KEY.fullmatch(part)]:
        raise UserError(f"{key!r} is no setting: {wrong[0]!r} is not a dotted key, as in {example}")
    return keys


def checked_choices(key: str, texts: Sequence[str], example: str, least: int = 1) -> tuple[str, ...]:
    if len(texts) < least or not all(texts):
        raise UserError(f"{key} has too few values or an empty one, expected something as in {example}")
    if len(set(texts)) < len(texts):
        raise UserError(f"{key} has a value twice: {', '.join(texts)}")
    return tuple(texts)


def parse_texts(texts: Iterable[str], search: bool) -> list[Axis]:
    """Axes from the command line: `key=values` each."""
    parse, example = (parse_search, SEARCH_EXAMPLE) if search else (parse_grid, GRID_EXAMPLE)
    axes = []
    for text in texts:
        key, given, values = text.partition("=")
        if not given:
            raise UserError(f"{text!r} has no values: expected something as in {example}")
        axes.append(parse(key, values))
    return axes


def split_values(text: str, separator: str = ",") -> list[str]:
    """Parts between separators that are neither in brackets nor in quotes."""
    parts, depth, quote, before = [""], 0, "", separator
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in QUOTES and before in f"{separator},:{OPENING}":  # YAML's rule: else it is an apostrophe
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
        raise UserError(f"{text!r} has a bracket or a quote that does not close")
    return [part.strip() for part in parts]


def grid_settings(axes: Sequence[Axis]) -> list[dict[str, Any]]:
    """Every combination, in the order in which values were given; the last axis changes first."""
    names = [axis.name for axis in axes]
    return [dict(zip(names, values, strict=True)) for values in product(*(axis.choices for axis in axes))]


def first_setting(axes: Sequence[Axis]) -> dict[str, Any]:
    return {axis.name: axis.choices[0] if axis.choices else axis.low for axis in axes}


def options_of(axes: Sequence[Axis], setting: Setting) -> list[str]:
    """A setting as options of `zoo fit`."""
    return [option for axis in axes for option in axis.options(setting[axis.name])]


def short_keys(axes: Sequence[Axis]) -> dict[str, str]:
    """For each axis as much of the end of its first key as tells it from the others."""
    parts = {axis.name: axis.keys[0].split(".") for axis in axes}
    for length in range(1, max(map(len, parts.values())) + 1):
        short = {name: ".".join(key[-length:]) for name, key in parts.items()}
        if len(set(short.values())) == len(short):
            return short
    return {axis.name: axis.name for axis in axes}


def describe(axes: Sequence[Axis], setting: Setting) -> str:
    """A setting for a person to read."""
    return ", ".join(f"{key}={short_text(setting[name])}" for name, key in short_keys(axes).items())


def run_name(experiment: str, axes: Sequence[Axis], setting: Setting) -> str:
    """A folder's name that no other setting of a sweep has."""
    values = [f"{key}-{short_text(setting[name])}" for name, key in short_keys(axes).items()]
    readable = ILLEGAL.sub("-", "_".join([experiment, *values]))
    content = json.dumps(options_of(axes, setting)).encode()
    return f"{readable[:NAME_LENGTH].strip('.-_')}_{hashlib.sha256(content).hexdigest()[:6]}"


def short_text(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else text_of(value)
