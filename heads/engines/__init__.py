"""Linear models fitted by native libraries: liblinear and omikuji."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from heads.engines.linear_engine import LinearEngine
    from heads.engines.nearest import NearestNeighbours
    from heads.engines.omikuji_trees import Bonsai, Parabel
    from heads.engines.svm import OneVsRestSvm

__all__ = ["Bonsai", "LinearEngine", "NearestNeighbours", "OneVsRestSvm", "Parabel"]
__getattr__, __dir__ = lazy_names(__name__)
