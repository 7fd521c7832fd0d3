"""Ensembles that rank the candidates of other heads by a model of features shared by all labels."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.blend.blend import Blend
    from heads.blend.dense_features import DenseNeighbours, LabelTexts
    from heads.blend.features import Cooccurrence, Counts, LabelWords, Neighbours, PairFeatures, Scores
    from heads.blend.label_groups import Clusters, Hierarchy
    from heads.blend.proposals import Proposals

__all__ = [
    "Blend",
    "Clusters",
    "Cooccurrence",
    "Counts",
    "DenseNeighbours",
    "Hierarchy",
    "LabelTexts",
    "LabelWords",
    "Neighbours",
    "PairFeatures",
    "Proposals",
    "Scores",
]
__getattr__, __dir__ = lazy_names(__name__)
