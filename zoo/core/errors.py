"""The exception for errors that the user can fix, and helpers for its messages."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]")  # and what reverses text
SUGGESTIONS = 5
LARGEST = 2**31 - 1  # highest value of a setting without a limit of its own
WIDEST = 2**16  # of a layer, and other sizes that are allocated: a mistyped size must not fill the memory
MANY = 1000  # parts of a model or processes: blocks, trees, members, workers
MAX_SEED = 2**32 - 1  # of numpy


class UserError(Exception):
    """An error in the input or the settings, which the command line prints in one line before it exits with code 2.

    The message says what is wrong and how to fix it. Settings are in backticks, as in Python: `max_length=500`, or
    `data.vectors` and `backbone.name` for those of another section. The command line turns them into its options.

    Attributes:
        owner: setting that contains the object with the named settings, such as `encoder` of `PerLevel`.
    """

    owner: str | None = None


def check_low(low: float, **values: float | None) -> None:
    """Refuse settings, given by name, that are not numbers from `low` to LARGEST; None is ignored."""
    check_range(low, LARGEST, **values)


def check_range(low: float, high: float, **values: float | None) -> None:
    """Refuse settings, given by name, that are not numbers in [low, high]; None is ignored.

    Call it before anything of that size is allocated.
    """
    for name, value in values.items():
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, Real) or value != value:  # NaN differs from itself
            raise UserError(f"`{name}={value}` is not a number")
        if value < low:
            raise UserError(f"`{name}={value}` is too low: the lowest is {low:g}")
        if value > high:
            raise UserError(f"`{name}={value}` is too high: the highest is {high:g}")


def check_width(**values: float | None) -> None:
    """Refuse widths of layers, and other sizes that are allocated, that are not from 1 to WIDEST; None is ignored."""
    check_range(1, WIDEST, **values)


def check_numbers(settings: Mapping[str, Any], section: str) -> None:
    """Refuse numbers of a third party's settings, such as an optimizer's, that are infinite, NaN or a negative `lr`."""
    for name, value in settings.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            largest = sys.float_info.max
            check_range(0 if name == "lr" else -largest, largest, **{f"{section}.{name}": value})


def first_line(error: BaseException) -> str:
    """Return the first line of an error message; other libraries may add a page of advice."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def printable(text: str) -> str:
    """Replace characters of a stranger's text that a terminal would obey instead of printing them."""
    return CONTROLS.sub(lambda found: " " if found[0].isspace() else "\N{REPLACEMENT CHARACTER}", text)


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Suggest known names: those with the same last component first, then the most similar ones."""
    close = difflib.get_close_matches(name, known, n=SUGGESTIONS, cutoff=0.5)
    ends = [key for key in known if key.rpartition(".")[2] == name.rpartition(".")[2] and key not in close]
    close = [*ends, *close][:SUGGESTIONS]
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known[: 2 * SUGGESTIONS])}, ..."
