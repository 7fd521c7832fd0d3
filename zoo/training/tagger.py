"""Tag texts with a trained model."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from numbers import Integral
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from datamodules.batch import Batch, Targets
from datamodules.prepare.rows import pad, pad_values
from heads.base import Ranking
from heads.dual.label_text_head import LabelTextHead
from zoo.core.errors import UserError, check_low, check_range, first_line
from zoo.core.windows import windows
from zoo.training.arguments import (
    AUTO,
    check_examples,
    check_label_texts,
    check_limits,
    check_number,
    checked_path,
    quoted,
    well_formed,
)
from zoo.training.calibration import Calibration
from zoo.training.checkpoint import is_ensemble, read_checkpoint, rebuilt, save
from zoo.training.explain import NOTHING, Explanations, explanations
from zoo.training.ranking_model import RankingModel
from zoo.training.tags import Tag as Tag
from zoo.training.tags import Tags as Tags
from zoo.training.tags import WithAncestors

WINDOW = 16  # number of batches that are sorted by length together
K = 5  # labels of a text by default
MOST = 100  # labels of a text with automatic thresholds
Threshold = float | Literal["auto"]


class Tagger:
    """Ranks labels for texts: `zoo.load("best.ckpt").tag(["a text"])`.

    Several threads may call `tag` and `stream` at the same time, but not while another one calls `add_labels`.
    """

    def __init__(self, module: RankingModel, batch_size: int = 64) -> None:
        if module.vocabulary is None:
            raise UserError("this model has no vocabulary: load it from a checkpoint of `zoo fit`")
        self.module, self.vocabulary, self.batch_size = module.eval(), module.vocabulary, batch_size
        vocabulary = module.vocabulary
        self._fillers = sorted({*vocabulary.special_ids(), vocabulary.unk_id, vocabulary.pad_id})  # say nothing

    @property
    def batch_size(self) -> int:
        """Number of texts per batch."""
        return self._batch_size

    @batch_size.setter
    def batch_size(self, value: int) -> None:
        check_number("batch_size", value, Integral)
        check_low(1, batch_size=value)
        self._batch_size = int(value)

    @property
    def window(self) -> int:
        """Number of texts that are sorted by length together."""
        return self.batch_size * WINDOW

    @property
    def names(self) -> list[str]:
        """Labels that the model knows."""
        return self.module.space.names

    @property
    def threshold(self) -> float:
        """Score threshold with the best micro-F1 on the validation documents."""
        return self.module.threshold

    @threshold.setter
    def threshold(self, value: float) -> None:
        check_range(0, 1, threshold=value)
        self.module.threshold = float(value)

    @property
    def calibration(self) -> Calibration | None:
        """Calibration by `zoo calibrate`; scores are then calibrated probabilities."""
        return self.module.calibration

    @calibration.setter
    def calibration(self, value: Calibration | None) -> None:
        self.module.calibration = value

    @property
    def thresholds(self) -> np.ndarray | None:
        """Threshold of each label, (labels,); None if the model is not calibrated."""
        return None if self.calibration is None else self.calibration.thresholds

    def tag(
        self,
        texts: Iterable[str],
        k: int | None = None,
        threshold: Threshold = 0.0,
        explain: bool = False,
        ancestors: bool = False,
    ) -> list[list[Tag]]:
        """Return the best labels of each text, best first.

        Args:
            texts: the texts.
            k: maximum number of labels of a text. Default: 5, or 100 with automatic thresholds.
            threshold: lowest score of a label, or `"auto"` for `thresholds`; a model that is not calibrated has a
                single one, `self.threshold`.
            explain: also find the words that speak for each label, `Tag.spans`, and similar training documents,
                `Tag.documents`; slower.
            ancestors: add all ancestors of these labels, which are then more than k. A label's score is at least that
                of its descendants.
        """
        return list(self.stream(texts, k, threshold, explain, ancestors))

    def stream(
        self,
        texts: Iterable[str],
        k: int | None = None,
        threshold: Threshold = 0.0,
        explain: bool = False,
        ancestors: bool = False,
    ) -> Iterator[Tags]:
        """Like `tag`, but yields the labels of one text at a time and needs constant memory.

        It reads `window` texts before it yields the labels of the first.
        """
        if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
            raise TypeError(f"`texts` is a single {type(texts).__name__}: pass a list of strings")
        check_limits(k, threshold)
        closed = WithAncestors(self.module.space) if ancestors else None
        most = int(k or (MOST if threshold == AUTO else K))
        found = self._stream(texts, most, self._limits(threshold), explain)
        return found if closed is None else map(closed, found)

    def _limits(self, threshold: Threshold) -> np.ndarray:
        """Threshold of each label."""
        if threshold == AUTO and self.thresholds is not None:
            return self.thresholds
        return np.full(self.module.space.num_scored, float(self.threshold if threshold == AUTO else threshold))

    @torch.no_grad()
    def add_labels(
        self,
        examples: Iterable[tuple[str, Sequence[str]]] = (),
        update: bool = False,
        texts: Mapping[str, str] | None = None,
    ) -> Self:
        """Add labels in place, without gradient steps: `tagger.add_labels([("a text", ["new label"]), ...])`.

        Args:
            examples: documents with their labels.
            update: also update labels that the model already knows; they are refused by default.
            texts: texts of new labels by name, for heads that read label texts. They need no documents.
        """
        described = check_label_texts(texts or {})
        if described and not any(isinstance(part, LabelTextHead) for part in self.module.head.modules()):
            raise UserError(f"{type(self.module.head).__name__} scores no label by its text: give documents instead")
        documents, labels = ([], []) if described and not examples else check_examples(examples)
        counts, space = Counter(name for names in labels for name in names), self.module.space
        counts.update(dict.fromkeys(described, 0))
        known = {name: counts[name] for name in space.names if name in counts}
        if known and not update:
            raise UserError(
                f"the model already knows {quoted(list(known))}: remove known labels from the examples "
                "(`ignore_known`), or update them too (`update`)"
            )
        grown = space.grown({name: count for name, count in counts.items() if name not in known}, described)
        index = {name: i for i, name in enumerate(grown.names)}
        head = deepcopy(self.module.head)  # so that an error leaves the model unchanged
        batches = self.batches(documents, [[index[name] for name in names] for names in labels])
        tokens = dict(zip(described, map(self._known_tokens, described.values()), strict=True))
        head.learn_labels(grown, ((self.module(batch), batch.targets) for _, batch in batches), tokens)
        self.module.head, self.module.space = head, grown.with_more(known)
        if self.module.calibration is not None:
            self.module.calibration = self.module.calibration.grown(self.module.space)
        return self

    def _known_tokens(self, text: str) -> list[int]:
        """Tokens of a label text; none if the model knows no word of it."""
        (tokens,) = self.vocabulary.encode([well_formed(text)])
        return tokens if set(tokens) - set(self._fillers) else []

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint for `zoo.load`, `zoo predict` and `zoo add-labels`; training cannot resume from it."""
        save(self.module, checked_path(path))

    def _stream(self, texts: Iterable[str], k: int, limits: np.ndarray, explain: bool) -> Iterator[Tags]:
        first = 1
        for window in windows(texts, self.window):
            for number, text in enumerate(window, first):
                if not isinstance(text, str):
                    raise TypeError(f"text {number} is of type {type(text).__name__}, not a string")
            ranking, known = self.rank_texts(window, min(k, self.module.space.num_scored))
            if ranking.scores.isnan().any():
                raise UserError("the model's scores are NaN: its training diverged, or values of a text are too large")
            is_low = ranking.scores.numpy() < limits[ranking.labels.clamp_min(0).numpy()]
            labels = ranking.labels.masked_fill(torch.from_numpy(is_low), -1)
            none = [[NOTHING] * labels.shape[1]] * len(window)
            reasons = self.explain_texts(window, labels) if explain else none
            yield from self._tags(Ranking(ranking.scores, labels), known, reasons)
            first += len(window)

    def batches(self, texts: list[str], labels: list[list[int]]) -> Iterator[tuple[list[int], Batch]]:
        """Yield batches of similar length, each with the positions of its texts."""
        encoded, values = self.vocabulary.encode_with_values([well_formed(text) for text in texts])
        tokens = [np.array(ids) for ids in encoded]
        order = sorted(range(len(texts)), key=lambda i: -len(tokens[i]))
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            ids, mask = pad([tokens[row] for row in rows], self.vocabulary.pad_id)
            targets = Targets.from_lists([labels[row] for row in rows])
            each = pad_values([np.array(values[row]) for row in rows], mask) if values else None
            batch = Batch(ids, mask, targets, torch.arange(len(rows)), each, self.vocabulary.window)
            yield rows, batch.to(self.module.device)

    @torch.inference_mode()
    def rank_texts(self, texts: list[str], k: int) -> tuple[Ranking, Tensor]:
        """Rank k labels for each text, on the CPU; the second tells whether the model knows a word of a text."""
        scores, labels = torch.zeros(len(texts), k), torch.full((len(texts), k), -1)
        known = torch.zeros(len(texts), dtype=torch.bool)
        fillers = torch.tensor(self._fillers)
        for rows, batch in self.batches(texts, [[] for _ in texts]):
            ranking = self.module.rank(batch, k)
            found = ranking.labels.shape[1]
            scores[rows, :found], labels[rows, :found] = ranking.scores.float().cpu(), ranking.labels.cpu()
            known[rows] = (~torch.isin(batch.ids.cpu(), fillers)).any(1)
        return Ranking(scores, labels), known

    def _tags(self, ranking: Ranking, known: Tensor, reasons: Explanations) -> list[Tags]:
        names = self.module.space.labels
        rows = zip(ranking.labels.tolist(), ranking.scores.tolist(), reasons, strict=True)
        return [
            Tags(
                (Tag(names[i], x, why.spans, why.documents) for i, x, why in zip(*row, strict=True) if i >= 0), is_known
            )
            for row, is_known in zip(rows, known.tolist(), strict=True)
        ]

    def explain_texts(self, texts: list[str], labels: Tensor) -> Explanations:
        """What speaks for `labels` (texts, n), the best ones of each text; nothing for label -1."""
        return explanations(self, texts, labels)


def load(path: str | os.PathLike[str], device: str | torch.device | None = None, trust: Sequence[str] = ()) -> Tagger:
    """Load a tagger from a checkpoint file, or from the Hugging Face hub.

    Args:
        path: checkpoint of `zoo fit`, or `owner/name` or `owner/name@revision` of a shared model; a local file wins.
        device: device such as `cpu` or `cuda` (default: a GPU if available).
        trust: modules outside the zoo with classes that the checkpoint may use, such as `["my_heads"]`.
    """
    if not isinstance(device, str | torch.device | None):
        raise TypeError(f"`device={device!r}` is of type {type(device).__name__}, not a string")
    file = checked_path(path)
    content = read_checkpoint(file)
    if is_ensemble(content):
        from zoo.training.ensemble_tagger import EnsembleTagger

        return EnsembleTagger.of(content, file, device, trust)
    return tagger_of(content, file, device, trust)


def tagger_of(
    content: dict[str, Any], path: Path, device: str | torch.device | None = None, trust: Sequence[str] = ()
) -> Tagger:
    """Make a tagger from the content of a checkpoint."""
    module = rebuilt(content, path, trust)
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        if torch.device(place).type == "meta":
            raise UserError("no device 'meta': it computes nothing")
        return Tagger(module.to(place))
    except (RuntimeError, AssertionError, ImportError) as error:
        raise UserError(f"no device {str(place)!r}: {first_line(error)}") from error
