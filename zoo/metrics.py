"""Every number that a run reports, from one pass over ranked candidates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchmetrics import Metric

from datamodules.batch import FREQUENCY_CLASSES, LabelSpace, Targets

GRID = 1000  # `best_threshold` looks at 0, 1/GRID, ..., 1
MEANS = ("P", "nDCG", "R", "RP")  # averaged over documents
RATIOS = ("PSP", "PSnDCG")  # a sum over documents, divided by that of the best possible ranking
MACRO = ("P", "R", "F")
TOP, FIXED, TUNED = range(3)  # what counts as predicted: rank <= macro_k, score >= threshold, score >= tuned_threshold


class RankingMetrics(Metric):
    """Ranking, propensity-scored, macro-averaged and thresholded metrics of extreme multi-label classification.

    With y the labels of a document, d_j = 1 / log2(j + 1) and h_j = 1 if its j-th candidate is in y:

    - `P@k` = sum h_j / k, also where |y| < k; `R@k` = sum h_j / |y|; `RP@k` = sum h_j / min(k, |y|).
    - `nDCG@k` = sum d_j h_j / I_k, where I_k sums d_j over j <= min(k, |y|).
    - `PSP@k` (Jain et al. 2016) weighs a hit by its inverse propensity w and divides the sum over documents by
      that of the k largest w in each y; `PSnDCG@k` does so with discounted sums, each first divided by its I_k.
    - `macroP@5`, `macroR@5`, `macroF@5`: of a label predicted p times in the top 5, t times rightly, and true y
      times, t / p (0 if p = 0), t / y and 2 t / (p + y). The mean is over the labels with y > 0 in `all`, in a
      class of `LabelSpace.frequency_class`, with one training document (`oneshot`), with one to three (`rare`), or
      in a bin of training frequency (`bin01` is the most frequent); `labels/<group>` tells how many these are.
    - `microF1@0.5`, `macroF1@0.5`: 2 t / (p + y) of pooled counts, and its mean over labels with y > 0, where p
      counts the candidates with score >= 0.5. `@tuned` has `tuned_threshold` in place of 0.5, with the
      value that it had at each update.

    A document without labels counts nowhere, not even with its false positives. A label that training never saw
    is always a miss. All states are sums, so neither batching nor the number of processes changes a result.
    """

    full_state_update = False
    is_differentiable = False
    higher_is_better = True

    weights: Tensor  # (num_all,) inverse propensities
    frequency: Tensor  # (num_all,) training documents
    frequency_class: Tensor  # (num_all,)
    frequency_bin: Tensor  # (num_all,)
    tuned_threshold: Tensor  # (), saved in checkpoints
    documents: Tensor  # (), documents with labels
    sums: Tensor  # (MEANS, RATIOS, RATIOS of the best ranking; ks)
    support: Tensor  # (num_all,) documents that carry each label
    predicted: Tensor  # (TOP FIXED TUNED, num_all)
    hits: Tensor  # (TOP FIXED TUNED, num_all)
    histogram: Tensor  # (misses hits, GRID + 1) candidates; cell j holds j / GRID <= score < (j + 1) / GRID

    def __init__(
        self, space: LabelSpace, ks: Sequence[int] = (1, 3, 5), macro_k: int = 5, bins: int = 10, threshold: float = 0.5
    ) -> None:
        super().__init__()
        self.ks, self.macro_k, self.threshold = tuple(ks), macro_k, threshold
        self.num_labels, self.num_all = space.num_labels, space.num_all

        self.register_buffer("weights", space.inverse_propensity(), persistent=False)
        counts = torch.tensor([*space.counts, *(0 for _ in space.unseen)])
        self.register_buffer("frequency", counts, persistent=False)
        self.register_buffer("frequency_class", space.frequency_class(), persistent=False)
        self.register_buffer("frequency_bin", frequency_bins(space, bins), persistent=False)
        self.register_buffer("tuned_threshold", torch.tensor(threshold, dtype=torch.float64))

        self._add_sum("documents", dtype=torch.int64)
        self._add_sum("sums", len(MEANS) + 2 * len(RATIOS), len(self.ks), dtype=torch.float64)
        self._add_sum("support", self.num_all, dtype=torch.int64)
        self._add_sum("predicted", 3, self.num_all, dtype=torch.int64)
        self._add_sum("hits", 3, self.num_all, dtype=torch.int64)
        self._add_sum("histogram", 2, GRID + 1, dtype=torch.int64)

    def _add_sum(self, name: str, *shape: int, dtype: torch.dtype) -> None:
        self.add_state(name, torch.zeros(shape, dtype=dtype), dist_reduce_fx="sum")

    def _apply(self, fn: Callable[[Tensor], Tensor], exclude_state: Sequence[str] = "") -> nn.Module:
        """Move, but never round: half-precision training must not reach the counts. MPS has no float64."""
        device = fn(torch.empty(0, device=self.device)).device

        def move(tensor: Tensor) -> Tensor:
            single = device.type == "mps" and tensor.dtype == torch.float64
            return tensor.to(device, torch.float32 if single else tensor.dtype)

        return super()._apply(move, exclude_state)

    @property
    def update_called(self) -> bool:
        """Always True: a process that saw no document owes its zeros to the sum, and no warning."""
        return True

    def update(self, scores: Tensor, labels: Tensor, targets: Targets, counted: Tensor | None = None) -> None:
        """Take in ranked candidates, best first and distinct within a row.

        Args:
            scores: (batch, K) in [0, 1].
            labels: (batch, K); -1 fills rows with fewer candidates.
            targets: The true labels.
            counted: (batch,) False marks a repeated document, which is left out.
        """
        kept = targets.counts > 0 if counted is None else (targets.counts > 0) & counted
        if not kept.any():
            return
        scores, labels, targets = scores[kept].to(self.sums.dtype), labels[kept].long(), select(targets, kept)
        valid = (labels >= 0) & (labels < self.num_labels)
        labels = labels.where(valid, 0)
        hits = valid & self._is_true(labels, targets)

        self.documents += len(targets)
        self.sums += self._document_values(labels, hits, targets).sum(dim=1)
        tally(self.support, targets.indices)
        self._count_predictions(scores, labels, valid, hits)
        self._count_scores(scores[valid], hits[valid])

    def compute(self) -> dict[str, Tensor]:
        """Fractions in [0, 1] by name, and the sizes of the groups of labels; 0 where there is nothing to average."""
        return self._ranking_results() | self._macro_results() | self._threshold_results()

    def best_threshold(self) -> float:
        """The threshold with the highest micro-F1 on what was seen, for `tuned_threshold.fill_`.

        Of the thresholds j / GRID that reach the maximum it is the middle of the lowest run of neighbours.
        A collective operation: in distributed runs every process calls it, and all get the same answer.
        """
        alone = not self._is_synced
        with self.sync_context(should_sync=alone, should_unsync=alone):
            misses, hits = self.histogram.flip(1).cumsum(1).flip(1)  # (GRID + 1,) with score >= j / GRID
            f1 = self._ratio(2 * hits, misses + hits + self.support.sum())
        best = f1 == f1.max()
        first = int(best.nonzero()[0])
        run = int(best[first:].long().cumprod(0).sum())
        return (first + (run - 1) // 2) / GRID

    def _is_true(self, labels: Tensor, targets: Targets) -> Tensor:
        """Which candidates their document carries, (batch, K) bool."""
        rows = torch.arange(len(labels), device=labels.device)[:, None]
        wanted = rows * self.num_all + labels
        present = targets.rows * self.num_all + targets.indices  # ascending
        at = torch.searchsorted(present, wanted).clamp(max=len(present) - 1)
        return present[at] == wanted

    def _document_values(self, labels: Tensor, hits: Tensor, targets: Targets) -> Tensor:
        """The rows of `sums` for each document, (MEANS + 2 RATIOS, batch, ks)."""
        depth = max(self.ks)
        ks = torch.tensor(self.ks, device=labels.device)
        ranks = torch.arange(1, depth + 1, device=labels.device).to(self.sums.dtype)
        plain = (ranks[:, None] <= ks).to(self.sums.dtype)  # (depth, ks)
        discounted = plain / torch.log2(ranks + 1)[:, None]

        size = targets.counts[:, None]  # (batch, 1)
        ideal = (ranks <= size).to(self.sums.dtype)  # (batch, depth), as are the next three
        best = self._best_weights(targets, depth)
        to_depth = (0, depth - labels.shape[1])  # cuts if negative
        hit = F.pad(hits.to(self.sums.dtype), to_depth)
        gain = F.pad(hits * self.weights[labels], to_depth)

        found, norm = hit @ plain, ideal @ discounted  # (batch, ks)
        means = [found / ks, hit @ discounted / norm, found / size, found / (ideal @ plain)]
        ratios = [value for g in (gain, best) for value in (g @ plain, g @ discounted / norm)]
        return torch.stack(means + ratios)

    def _best_weights(self, targets: Targets, depth: int) -> Tensor:
        """The largest inverse propensities of each document, falling, padded with 0, (batch, depth)."""
        place = torch.arange(len(targets.indices), device=targets.indices.device) - targets.indptr[targets.rows]
        padded = self.weights.new_zeros(len(targets), max(depth, int(targets.counts.max())))
        padded[targets.rows, place] = self.weights[targets.indices]
        return padded.topk(depth).values

    def _count_predictions(self, scores: Tensor, labels: Tensor, valid: Tensor, hits: Tensor) -> None:
        """Add to `predicted` and `hits` what the top and the two thresholds select."""
        top = (torch.arange(labels.shape[1], device=labels.device) < self.macro_k).expand_as(valid)
        chosen = valid & torch.stack([top, scores >= self.threshold, scores >= self.tuned_threshold])  # (3, batch, K)
        cells = torch.arange(3, device=labels.device)[:, None, None] * self.num_all + labels
        tally(self.predicted, cells[chosen])
        tally(self.hits, cells[chosen & hits])

    def _count_scores(self, scores: Tensor, hits: Tensor) -> None:
        """Add candidates, (n,) scores and (n,) bool, to `histogram`."""
        edges = torch.arange(1, GRID + 1, device=scores.device).to(scores.dtype) / GRID
        cells = torch.bucketize(scores, edges, right=True)  # the number of edges <= score
        tally(self.histogram, hits * (GRID + 1) + cells)

    def _ranking_results(self) -> dict[str, Tensor]:
        means, (ratios, best) = self.sums[: len(MEANS)], self.sums[len(MEANS) :].chunk(2)
        values = torch.cat([means / self.documents.clamp(min=1), ratios / best.clamp(min=1)])  # no weight is below 1
        names = [f"{name}@{k}" for name in MEANS + RATIOS for k in self.ks]
        return dict(zip(names, values.flatten(), strict=True))

    def _macro_results(self) -> dict[str, Tensor]:
        predicted, hits = self.predicted[TOP], self.hits[TOP]
        pairs = ((hits, predicted), (hits, self.support), (2 * hits, predicted + self.support))
        values = torch.stack([self._ratio(*pair) for pair in pairs])  # (MACRO, num_all)
        results: dict[str, Tensor] = {}
        for group, members in self._groups():
            present = members & (self.support > 0)
            size = present.sum()
            means = values[:, present].sum(dim=1) / size.clamp(min=1)
            results |= {f"macro{name}@{self.macro_k}/{group}": mean for name, mean in zip(MACRO, means, strict=True)}
            results[f"labels/{group}"] = size.to(values.dtype)
        return results

    def _groups(self) -> Iterator[tuple[str, Tensor]]:
        """Name and mask (num_all,) of each group of labels."""
        yield "all", torch.ones_like(self.support, dtype=torch.bool)
        yield "oneshot", self.frequency == 1
        yield "rare", (self.frequency >= 1) & (self.frequency <= 3)
        for i, name in enumerate(FREQUENCY_CLASSES):
            yield name, self.frequency_class == i
        for i in range(int(self.frequency_bin.max()) + 1):
            yield f"bin{i + 1:02d}", self.frequency_bin == i

    def _threshold_results(self) -> dict[str, Tensor]:
        results = {}
        labels = (self.support > 0).sum().clamp(min=1)
        for name, which in ((f"{self.threshold:g}", FIXED), ("tuned", TUNED)):
            twice, total = 2 * self.hits[which], self.predicted[which] + self.support
            results[f"microF1@{name}"] = self._ratio(twice.sum(), total.sum())
            results[f"macroF1@{name}"] = self._ratio(twice, total).sum() / labels
        return results

    def _ratio(self, numerator: Tensor, denominator: Tensor) -> Tensor:
        """Quotient of counts in the precision of `sums`, 0 / 0 = 0."""
        return numerator.to(self.sums.dtype) / denominator.clamp(min=1)


def frequency_bins(space: LabelSpace, bins: int) -> Tensor:
    """Bin of each label, (num_all,): equal shares of the labels with training documents, by falling count.

    Sizes differ by at most one; fewer labels make fewer bins. Labels without training documents join the last bin.
    """
    trained = max(sum(count > 0 for count in space.counts), 1)
    bins = min(bins, trained)
    place = torch.arange(space.num_all)
    place[space.by_frequency()] = torch.arange(space.num_labels)
    return (place * bins // trained).clamp(max=bins - 1)


def select(targets: Targets, kept: Tensor) -> Targets:
    """The documents where `kept`, (batch,) bool, is True."""
    return Targets(F.pad(targets.counts[kept].cumsum(0), (1, 0)), targets.indices[kept[targets.rows]])


def tally(counts: Tensor, cells: Tensor) -> None:
    """Add 1 to the flattened `counts` at each of `cells`, at a cost that does not depend on the size of `counts`."""
    counts.view(-1).index_add_(0, cells, torch.ones_like(cells))
