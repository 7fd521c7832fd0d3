"""Export mode: code whose shapes depend on the data takes a form that a graph can express."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

EXPORTING = ContextVar("EXPORTING", default=False)


def is_exporting() -> bool:
    """Whether a model is being traced. Results are the same, but documents are not split into blocks."""
    return EXPORTING.get()


@contextmanager
def exporting() -> Iterator[None]:
    token = EXPORTING.set(True)
    try:
        yield
    finally:
        EXPORTING.reset(token)
