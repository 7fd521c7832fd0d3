"""What a report shows of a model besides its metrics, stored in `evidence.npz`."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from zoo.core.console import note
from zoo.core.errors import first_line
from zoo.core.run_folder import EVIDENCE, LABELS, RunFolder


@dataclass(frozen=True)
class Points:
    """Features of a few labels, from training documents or generated."""

    values: np.ndarray  # (n, width)
    labels: np.ndarray  # (n,)
    generated: np.ndarray  # (n,) bool


@dataclass(frozen=True)
class Example:
    """A test document as the model read it, with its true and predicted labels."""

    id: str
    kind: str  # "right", "missed" or "wrong"
    words: list[str]  # with a leading space, unless a token continues the word before it
    truth: list[int]
    found: list[int]  # best first
    scores: list[float]
    attention: dict[int, list[float]] = field(default_factory=dict)  # by label, one weight for each of `words`


@dataclass(frozen=True)
class Evidence:
    """Fields are None or empty if the model does not provide them."""

    norms: np.ndarray | None = None  # (num_labels,) norm of the weights of each label
    correlated: np.ndarray | None = None  # (m,) labels, from frequent to rare
    correlation: np.ndarray | None = None  # (m, m) of their training documents
    points: Points | None = None
    experts: tuple[str, ...] = ()
    divergence: np.ndarray | None = None  # (experts, experts) mean KL(row || column) on true labels
    examples: tuple[Example, ...] = ()

    def save(self, run: RunFolder) -> None:
        arrays: dict[str, Any] = {name: getattr(self, name) for name in ("norms", "correlated", "correlation")}
        arrays["divergence"] = self.divergence
        if self.points is not None:
            arrays |= {f"points_{name}": value for name, value in vars(self.points).items()}
        texts = {"experts": list(self.experts), "examples": [asdict(example) for example in self.examples]}
        arrays["texts"] = np.array(json.dumps(texts))
        run.write_evidence({name: value for name, value in arrays.items() if value is not None})

    @classmethod
    def load(cls, run: RunFolder) -> Evidence | None:
        """Evidence of a run; None if it is missing or does not match the labels of the run."""
        arrays = run.read_evidence()
        if arrays is None:
            return None
        try:
            found = cls._of_arrays(arrays)
            found.check_shapes()
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            note(f"{run.path}: {EVIDENCE} cannot be read ({first_line(error)}) and is ignored")
            return None
        if not found.is_within(len(run.label_names)):
            note(f"{run.path}: ignoring {EVIDENCE}, which does not match {LABELS}")
            return None
        return found

    @classmethod
    def _of_arrays(cls, arrays: dict[str, np.ndarray]) -> Evidence:
        texts = json.loads(str(arrays.pop("texts")))
        points = {name: arrays.pop(f"points_{name}", None) for name in ("values", "labels", "generated")}
        examples = [
            Example(**content | {"attention": {int(label): w for label, w in content["attention"].items()}})
            for content in texts["examples"]
        ]
        return cls(
            **arrays,
            points=None if points["values"] is None else Points(**points),  # type: ignore[arg-type]
            experts=tuple(texts["experts"]),
            examples=tuple(examples),
        )

    def check_shapes(self) -> None:
        """Refuse arrays of other shapes or kinds than `save` writes."""
        sizes = {"norms": 1, "correlated": 1, "correlation": 2, "divergence": 2}
        arrays = {name: (getattr(self, name), size) for name, size in sizes.items()}
        if self.points is not None:
            shapes = {"values": 2, "labels": 1, "generated": 1}
            arrays |= {f"points_{name}": (getattr(self.points, name), size) for name, size in shapes.items()}
            if len({len(getattr(self.points, name)) for name in shapes}) > 1:
                raise ValueError("points differ in number")
        for name, (array, size) in arrays.items():
            if array is not None and (array.ndim != size or array.dtype.kind not in "biuf"):
                raise ValueError(f"{name} is not an array of {size} dimensions")
        square = [(self.correlation, self.correlated), (self.divergence, self.experts)]
        if any(m is not None and m.shape != (len([] if n is None else n),) * 2 for m, n in square):
            raise ValueError("a matrix does not fit its rows")

    def is_within(self, num_labels: int) -> bool:
        """Whether all label indices are below `num_labels`."""
        labels = [*(() if self.correlated is None else self.correlated)]
        labels += [] if self.points is None else self.points.labels.tolist()
        labels += [label for example in self.examples for label in (*example.truth, *example.found)]
        return all(0 <= label < num_labels for label in labels) and (
            self.norms is None or len(self.norms) <= num_labels
        )
