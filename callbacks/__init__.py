"""Lightning callbacks: what happens around training."""

from callbacks.report import RunReport

__all__ = ["RunReport"]
