"""A model zoo with plug-in heads for long-tailed and extreme multi-label text classification."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from zoo.core.errors import UserError
    from zoo.core.version import __version__
    from zoo.training.spans import Similar, Span
    from zoo.training.tagger import Tagger, load
    from zoo.training.tags import Tag, Tags

__all__ = ["Similar", "Span", "Tag", "Tagger", "Tags", "UserError", "__version__", "load"]
__getattr__, __dir__ = lazy_names(__name__)
