"""The exception for errors that the user can fix, and helpers for its messages."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

SUGGESTIONS = 5


class UserError(Exception):
    """An error in the input or the settings, which the command line prints in one line before it exits with code 2.

    The message says what is wrong and how to fix it. Settings are in backticks, as in Python: `max_length=500`, or
    `data.vectors` and `backbone.name` for those of another section. The command line turns them into its options.

    Attributes:
        owner: setting that contains the object with the named settings, such as `encoder` of `PerLevel`.
    """

    owner: str | None = None


def check_low(low: float, **values: float | None) -> None:
    """Refuse settings, given by name, that are below `low`; None is ignored."""
    check_range(low, None, **values)


def check_range(low: float, high: float | None, **values: float | None) -> None:
    """Refuse settings, given by name, that are outside [low, high]; None is ignored, and as `high` unbounded."""
    for name, value in values.items():
        if value is not None and not value >= low:
            raise UserError(f"`{name}={value}` is too low: the lowest is {low:g}")
        if value is not None and high is not None and value > high:
            raise UserError(f"`{name}={value}` is too high: the highest is {high:g}")


def first_line(error: BaseException) -> str:
    """Return the first line of an error message; other libraries may add a page of advice."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Suggest known names: those with the same last component first, then the most similar ones."""
    close = difflib.get_close_matches(name, known, n=SUGGESTIONS, cutoff=0.5)
    ends = [key for key in known if key.rpartition(".")[2] == name.rpartition(".")[2] and key not in close]
    close = [*ends, *close][:SUGGESTIONS]
    return f"did you mean {' or '.join(close)}?" if close else f"there are {', '.join(known[: 2 * SUGGESTIONS])}, ..."
