"""Lightning callbacks: what happens around training."""

from callbacks.averaging import StageAveraging
from callbacks.last import LastCheckpoint
from callbacks.predictions import KeepPredictions
from callbacks.progress import StageProgressBar
from callbacks.report import RunReport
from callbacks.schedule import StageSchedule
from callbacks.stages import Stage
from callbacks.tail_augment import TailAugment
from callbacks.warmup import WarmupDecay

__all__ = [
    "KeepPredictions",
    "LastCheckpoint",
    "RunReport",
    "Stage",
    "StageAveraging",
    "StageProgressBar",
    "StageSchedule",
    "TailAugment",
    "WarmupDecay",
]
