"""A model zoo with plug-in heads for long-tailed and extreme multi-label text classification."""

from zoo.tagger import Tag, Tagger, load

__all__ = ["Tag", "Tagger", "load"]
