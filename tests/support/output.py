"""Reading what a command shows by names and numbers, whatever the wording."""

from __future__ import annotations

import re


def line_with(text: str, *names: object) -> str:
    """First line with all of `names`."""
    found = [line for line in text.splitlines() if all(str(name) in line for name in names)]
    assert found, f"no line with {names} in:\n{text}"
    return found[0]


def numbers(line: str, without: object = "") -> list[float]:
    """All numbers of a line, in order, except those in `without`, such as a path."""
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", line.replace(str(without), "", 1))]
