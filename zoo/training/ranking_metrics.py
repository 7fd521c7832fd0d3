"""All metrics of a run, from one pass over ranked candidates."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric

from datamodules.batch import LabelSpace, Targets
from zoo.core.hierarchy import Hierarchy
from zoo.core.metrics import (
    CORPUS_METRICS,
    DOCUMENT_METRICS,
    GROUP_METRICS,
    GROUPS,
    HIERARCHICAL_METRICS,
    KS,
    LABEL_METRICS,
    MACRO_K,
    THRESHOLD,
    RankedDocuments,
    f1,
    label_groups,
)
from zoo.core.ragged import Lists

GRID = 1000  # `best_threshold` tries 0, 1/GRID, ..., 1
TOP, FIXED, TUNED = range(3)  # predicted if rank <= macro_k, score >= threshold, or score >= tuned_threshold


class RankingMetrics(Metric):
    """Ranking, propensity-scored, macro-averaged and thresholded metrics of extreme multi-label classification.

    The definitions are those of `zoo.core.metrics`; this class accumulates their sums over batches and processes:

    - `P@k`, `nDCG@k`, `R@k`, `RP@k`: means over documents; `PSP@k`, `PSnDCG@k`, and if labels have parents `hP@k`,
      `hR@k`, `hF@k`: ratios of sums over documents.
    - `P@k/rare`, `nDCG@k/rare`, `R@k/rare`: of the ranking of the labels with one to three training documents, without
      all others, over the documents that have one; likewise `unseen`, without training documents, and the classes of
      `LabelSpace.frequency_class`.
    - `macroP@5`, `macroR@5`, `macroF@5`: means over the labels with test documents in `all`, in a class of
      `LabelSpace.frequency_class`, with one training document (`oneshot`), with one to three (`rare`), or in a bin of
      training frequency (`bin01` is the most frequent); `labels/<group>` is their number.
    - `microF1@0.5`, `macroF1@0.5`: F1 of pooled counts, and its mean over labels with test documents, where candidates
      with a score of at least 0.5 are predicted. `@tuned` uses `tuned_threshold`, with its value at each update.

    Documents without labels are ignored, including their false positives. A label that is not in the training set is a
    miss unless the label space says that it is scored. All states are sums, so results depend neither on the batch size
    nor on the number of processes.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True

    weights: Tensor  # (num_all,) inverse propensities
    tuned_threshold: Tensor  # (), saved in checkpoints
    documents: Tensor  # (), documents with labels
    sums: Tensor  # (DOCUMENT_METRICS, ratios, their denominators; ks)
    group_sums: Tensor  # (GROUPS, GROUP_METRICS, ks)
    group_documents: Tensor  # (GROUPS,), documents with a label of the group
    support: Tensor  # (num_all,) documents that have each label
    predicted: Tensor  # (TOP FIXED TUNED, num_all)
    hits: Tensor  # (TOP FIXED TUNED, num_all)
    histogram: Tensor  # (misses hits, GRID + 1) candidates; cell j holds j / GRID <= score < (j + 1) / GRID

    def __init__(
        self,
        space: LabelSpace,
        ks: Sequence[int] = KS,
        macro_k: int = MACRO_K,
        bins: int = 10,
        threshold: float = THRESHOLD,
    ) -> None:
        super().__init__()
        self.ks, self.macro_k, self.threshold = tuple(ks), macro_k, threshold
        self.num_scored, self.num_all = space.num_scored, space.num_all

        self.closures = Hierarchy(space.parents).closures(space.num_all) if space.parents else None
        self.ratios = CORPUS_METRICS | (HIERARCHICAL_METRICS if space.parents else {})

        self.register_buffer("weights", space.inverse_propensity(), persistent=False)
        in_bin = frequency_bins(space, bins).numpy()
        self.groups = label_groups(np.array([*space.counts, *(0 for _ in space.unseen)])) | {
            f"bin{i + 1:02d}": in_bin == i for i in range(in_bin.max() + 1)
        }
        self.register_buffer("tuned_threshold", torch.tensor(threshold, dtype=torch.float64))

        self._add_sum("documents", dtype=torch.int64)
        self._add_sum("sums", len(DOCUMENT_METRICS) + 2 * len(self.ratios), len(self.ks), dtype=torch.float64)
        self._add_sum("group_sums", len(GROUPS), len(GROUP_METRICS), len(self.ks), dtype=torch.float64)
        self._add_sum("group_documents", len(GROUPS), dtype=torch.int64)
        self._add_sum("support", self.num_all, dtype=torch.int64)
        self._add_sum("predicted", 3, self.num_all, dtype=torch.int64)
        self._add_sum("hits", 3, self.num_all, dtype=torch.int64)
        self._add_sum("histogram", 2, GRID + 1, dtype=torch.int64)

    def _add_sum(self, name: str, *shape: int, dtype: torch.dtype) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        """Change the device but never the precision of the counts, except on MPS, which has no float64."""
        device = fn(torch.empty(0, device=self.device)).device

        def move(tensor: Tensor) -> Tensor:
            single = device.type == "mps" and tensor.dtype == torch.float64
            return tensor.to(device, torch.float32 if single else tensor.dtype)

        return super()._apply(move, exclude_state)

    @property
    def update_called(self) -> bool:
        """Always True: a process without documents contributes zeros and should not warn."""
        return True

    def update(self, scores: Tensor, labels: Tensor, targets: Targets, counted: Tensor | None = None) -> None:
        """Add ranked candidates, best first and distinct within a row.

        Args:
            scores: (batch, K) in [0, 1].
            labels: (batch, K); -1 fills rows with fewer candidates.
            targets: true labels.
            counted: (batch,) False for repeated documents, which are ignored.
        """
        kept = targets.counts > 0 if counted is None else (targets.counts > 0) & counted
        if not kept.any():
            return
        scores, labels, targets = scores[kept].to(self.sums.dtype), labels[kept].long(), select(targets, kept)
        valid = (labels >= 0) & (labels < self.num_scored)
        ranked = RankedDocuments(
            Lists(targets.indptr.cpu().numpy(), targets.indices.cpu().numpy()),
            Lists.of_sizes(valid.sum(dim=1).cpu().numpy(), labels[valid].cpu().numpy()),
            self.weights.cpu().numpy(),
            self.closures,
        )
        hits = torch.from_numpy(ranked.is_hit).to(valid.device)
        top = torch.from_numpy(ranked.found.places < self.macro_k).to(valid.device)

        self.documents += len(targets)
        self.sums += torch.from_numpy(self._document_sums(ranked)).to(self.sums)
        self._add_groups(ranked)
        tally(self.support, targets.indices)
        self._count_predictions(scores[valid], labels[valid], top, hits)
        self._count_scores(scores[valid], hits)

    def compute(self) -> dict[str, Tensor]:
        """Return metrics in [0, 1] by name, and the sizes of the label groups; an empty mean is 0."""
        return self._ranking_results() | self._macro_results() | self._threshold_results()

    def best_threshold(self) -> float:
        """Return the threshold with the highest micro-F1 on the documents so far, for `tuned_threshold.fill_`.

        If several neighbouring thresholds j / GRID reach the maximum, it is the middle of the lowest such interval.
        This is a collective operation: all processes must call it, and get the same result.
        """
        alone = not self._is_synced
        with self.sync_context(should_sync=alone, should_unsync=alone):
            misses, hits = self.histogram.flip(1).cumsum(1).flip(1)  # (GRID + 1,) with score >= j / GRID
            micro = (2 * hits).to(self.sums.dtype) / (misses + hits + self.support.sum()).clamp(min=1)
        best = micro == micro.max()
        first = int(best.nonzero()[0])
        run = int(best[first:].long().cumprod(0).sum())
        return (first + (run - 1) // 2) / GRID

    def _document_sums(self, ranked: RankedDocuments) -> np.ndarray:
        """Return what a batch adds to `sums`."""
        means = [[metric(ranked, k).sum() for k in self.ks] for metric in DOCUMENT_METRICS.values()]
        ratios = [[[part.sum() for part in metric(ranked, k)] for k in self.ks] for metric in self.ratios.values()]
        numerators, denominators = np.moveaxis(np.array(ratios), -1, 0)  # (ratios, ks) each
        return np.concatenate([means, numerators, denominators])

    def _add_groups(self, ranked: RankedDocuments) -> None:
        for row, group in enumerate(GROUPS):
            alone = ranked.among(self.groups[group])
            values = [[DOCUMENT_METRICS[name](alone, k).sum() for k in self.ks] for name in GROUP_METRICS]
            self.group_sums[row] += torch.tensor(values).to(self.group_sums)
            self.group_documents[row] += len(alone)

    def _count_predictions(self, scores: Tensor, labels: Tensor, top: Tensor, hits: Tensor) -> None:
        """Add candidates, (n,) each, to `predicted` and `hits` if the top or a threshold selects them."""
        chosen = torch.stack([top, scores >= self.threshold, scores >= self.tuned_threshold])  # (3, n)
        cells = torch.arange(3, device=labels.device)[:, None] * self.num_all + labels
        tally(self.predicted, cells[chosen])
        tally(self.hits, cells[chosen & hits])

    def _count_scores(self, scores: Tensor, hits: Tensor) -> None:
        """Add candidates, (n,) scores and (n,) bool, to `histogram`."""
        edges = torch.arange(1, GRID + 1, device=scores.device).to(scores.dtype) / GRID
        cells = torch.bucketize(scores, edges, right=True)  # number of edges <= score
        tally(self.histogram, hits * (GRID + 1) + cells)

    def _ranking_results(self) -> dict[str, Tensor]:
        means, (ratios, best) = self.sums[: len(DOCUMENT_METRICS)], self.sums[len(DOCUMENT_METRICS) :].chunk(2)
        values = torch.cat([means / self.documents.clamp(min=1), ratios / best.clamp(min=1)])  # weights are at least 1
        names = [f"{name}@{k}" for name in (*DOCUMENT_METRICS, *self.ratios) for k in self.ks]
        by_group = self.group_sums / self.group_documents.clamp(min=1)[:, None, None]
        names += [f"{name}@{k}/{group}" for group in GROUPS for name in GROUP_METRICS for k in self.ks]
        return dict(zip(names, [*values.flatten(), *by_group.flatten()], strict=True))

    def _macro_results(self) -> dict[str, Tensor]:
        hits, predicted, support = self._counts(TOP)
        values = {name: metric(hits, predicted, support) for name, metric in LABEL_METRICS.items()}
        results: dict[str, Tensor] = {}
        for group, members in self.groups.items():
            present = members & (support > 0)
            size = int(present.sum())
            means = {name: value[present].sum() / max(size, 1) for name, value in values.items()}
            results |= {f"macro{name}@{self.macro_k}/{group}": self._result(mean) for name, mean in means.items()}
            results[f"labels/{group}"] = self._result(size)
        return results

    def _threshold_results(self) -> dict[str, Tensor]:
        results = {}
        for name, which in ((f"{self.threshold:g}", FIXED), ("tuned", TUNED)):
            hits, predicted, support = self._counts(which)
            labels = max((support > 0).sum(), 1)
            results[f"microF1@{name}"] = self._result(f1(hits.sum(), predicted.sum(), support.sum()))
            results[f"macroF1@{name}"] = self._result(f1(hits, predicted, support).sum() / labels)
        return results

    def _counts(self, which: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return hits, predictions and support of each label, as floats."""
        hits, predicted, support = self.hits[which], self.predicted[which], self.support
        return hits.double().cpu().numpy(), predicted.double().cpu().numpy(), support.double().cpu().numpy()

    def _result(self, value: float | np.ndarray) -> Tensor:
        return torch.tensor(float(value), dtype=self.sums.dtype, device=self.sums.device)


def frequency_bins(space: LabelSpace, bins: int) -> Tensor:
    """Assign labels to bins of equal size by descending training frequency, (num_all,).

    Sizes differ by at most one, and there are at most as many bins as labels. Labels without training documents are
    added to the last bin.
    """
    trained = max(sum(count > 0 for count in space.counts), 1)
    bins = min(bins, trained)
    place = torch.arange(space.num_all)
    place[space.by_frequency()] = torch.arange(space.num_labels)
    return (place * bins // trained).clamp(max=bins - 1)


def select(targets: Targets, kept: Tensor) -> Targets:
    """Return the documents where `kept`, (batch,) bool, is True."""
    return Targets(F.pad(targets.counts[kept].cumsum(0), (1, 0)), targets.indices[kept[targets.rows]])


def tally(counts: Tensor, cells: Tensor) -> None:
    """Add 1 to the flattened `counts` at each of `cells`, in time that does not depend on the size of `counts`."""
    counts.view(-1).index_add_(0, cells, torch.ones_like(cells))
