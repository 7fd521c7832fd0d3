"""A model zoo with plug-in heads for long-tailed and extreme multi-label text classification."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from zoo.tagger import Tag, Tagger, load

__all__ = ["Tag", "Tagger", "load"]


if not TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Imported when asked for: commands that only read files do not wait seconds for Lightning."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from zoo import tagger

        return getattr(tagger, name)
