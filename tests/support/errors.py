"""Assertions on error messages: the names and values in them, never the prose around these."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def raises(kind: type[Exception], *parts: object) -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Expect an error whose message is one line that contains every part, e.g. `raises(UserError, "beam=0")`."""
    with pytest.raises(kind) as caught:
        yield caught
    assert_message(str(caught.value), *parts)


def assert_message(message: str, *parts: object) -> None:
    """Expect one line that contains every part."""
    assert "\n" not in message
    missing = [part for part in map(str, parts) if part not in message]
    assert not missing, f"{missing} not in {message!r}"
