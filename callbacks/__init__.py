"""Lightning callbacks: stages, checkpoints, weight averaging, reports and augmentation."""

from typing import TYPE_CHECKING

from zoo.core.lazy import lazy_names

if TYPE_CHECKING:
    from callbacks.averaging import StageAveraging
    from callbacks.last_checkpoint import LastCheckpoint
    from callbacks.predictions import KeepPredictions
    from callbacks.progress_bar import StageProgressBar
    from callbacks.run_report import RunReport
    from callbacks.schedule import StageSchedule
    from callbacks.tail_augment import TailAugment
    from callbacks.warmup import WarmupDecay
    from zoo.training.stage import Stage

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
__getattr__, __dir__ = lazy_names(__name__)
