"""One-vs-rest linear SVMs, fitted by liblinear."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, Literal

import numpy as np
import torch
from scipy.sparse import csc_array, csr_array
from torch import Tensor

from datamodules.batch import LabelSpace
from heads.base import Ranking, TransitionContext, probabilities, top_labels
from heads.engines.linear_engine import LinearEngine
from heads.engines.one_vs_rest import Column, OneVsRest, library
from heads.engines.processes import Workers
from zoo.core.cores import available_cores, in_threads
from zoo.core.errors import MANY, UserError, check_low, check_range, first_line
from zoo.core.ragged import Lists

GROUP = 16  # labels per process; the result depends on it, so it does not depend on the number of workers
DENSE = 2**22  # largest number of scores in a block of documents
LEAST_NORM = 1e-6  # of weights that are divided by their norm
ROWS = 64  # documents per block: small, so that a batch has blocks for all cores
Penalty = Literal["l2", "l1"]
SOLVERS: dict[str, int] = {"l2": 1, "l1": 5}  # of liblinear


class OneVsRestSvm(LinearEngine):
    r"""One linear SVM with squared hinge loss per label, on TF-IDF features.

    .. math:: \min_w \Omega(w) + C \sum_i \max(0, 1 - s_i w^T x_i)^2

    With :math:`\Omega = |w|_2^2 / 2` it is the model of DiSMEC (Babbar and Schölkopf 2017,
    https://arxiv.org/abs/1609.02521), which also prunes small weights. With :math:`\Omega = |w|_1` it is ProXML:
    Babbar and Schölkopf 2019, "Data scarcity, robustness and extreme multi-label classification"
    (https://doi.org/10.1007/s10994-019-05791-5): the words of a rare label's test documents differ from those of its
    few training documents, and robustness to the worst change of each feature is a penalty on the L1 norm.

    Fitted by liblinear, with a bias as one more weight: the dual solver for L2, coordinate descent for L1, where ProXML
    has a proximal gradient method, because coordinate descent stops too early (docs/methods/baselines.md says how far
    from the minimum). Both solvers shuffle with a global random state that cannot be seeded. Each group of labels is
    therefore fitted in a fresh process, so that the result is the same in every run and for any number of workers.

    Args:
        cost: penalty of errors, relative to the norm of the weights (C).
        prune: weights with a smaller magnitude are dropped; 0 keeps all.
        penalty: norm of the weights, `l2`, or `l1` for ProXML.
        slope: a label's probability is sigmoid(slope * margin).
        workers: number of processes. Default: the number of cores.
        normalize: exponent t of w / |w|^t in predictions (Kang et al. 2020, https://arxiv.org/abs/1910.09217, section
            4.1): 1 makes the weights of all labels equally long, 0 leaves them. Biases are kept.
        words: arguments of `LinearEngine`.
    """

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        cost: float = 1.0,
        prune: float = 0.01,
        slope: float = 4.0,
        workers: int | None = None,
        normalize: float = 0.0,
        penalty: Penalty = "l2",
        **words: Any,
    ) -> None:
        super().__init__(dim, space, **words)
        check_low(1e-9, cost=cost, slope=slope)
        check_low(0, prune=prune, normalize=normalize)
        check_range(1, MANY, workers=workers)
        if penalty not in SOLVERS:
            raise UserError(f"`penalty={penalty}` is none of {', '.join(SOLVERS)}")
        self.cost, self.prune, self.slope, self.workers, self.normalize = cost, prune, slope, workers, normalize
        self.penalty = penalty
        self.settings |= {"cost": cost, "prune": prune, "slope": slope, "workers": workers, "normalize": normalize}
        self.settings |= {"penalty": penalty}
        self.weights: csr_array | None = None  # (vocabulary, num_labels)
        self.bias = np.zeros(0, np.float32)  # (num_labels,)

    @property
    def fitted(self) -> bool:
        return self.weights is not None

    @property
    def num_weights(self) -> int:
        return 0 if self.weights is None else int(self.weights.nnz) + len(self.bias)

    def weight_norms(self) -> Tensor | None:
        if self.weights is None:
            return None
        squares = np.bincount(self.weights.indices, self.weights.data.astype(np.float64) ** 2, self.num_labels)
        return torch.from_numpy(np.sqrt(squares)).float()

    def check_plan(self, transitions: Sequence[str]) -> None:
        super().check_plan(transitions)
        if "fit" in transitions:
            library()  # fail before other stages run for hours; a fitted model does not need it

    def learn(self, words: csr_array, labels: csr_array, ctx: TransitionContext) -> None:
        groups = [range(start, min(start + GROUP, self.num_labels)) for start in range(0, self.num_labels, GROUP)]
        found: dict[int, list[Column]] = {}
        with self._workers(words, labels, groups) if ctx.first else nullcontext() as workers:
            for group in ctx.track(range(len(groups)), "fitting labels"):
                while workers is not None and group not in found:
                    found |= dict(workers.receive())
        if ctx.first:
            columns = [column for group in range(len(groups)) for column in found[group]]
            starts = np.concatenate([[0], np.cumsum([len(column.words) for column in columns])])
            starts = starts.astype(np.int32 if starts[-1] < 2**31 else np.int64)  # also sets the type of the indices
            parts = (np.concatenate(part) for part in ([c.values for c in columns], [c.words for c in columns]))
            self.weights = csc_array((*parts, starts), (words.shape[1], self.num_labels)).tocsr()
            self.bias = np.array([column.bias for column in columns], np.float32)

    def _workers(self, words: csr_array, labels: csr_array, groups: list[range]) -> Workers:
        options = f"-s {SOLVERS[self.penalty]} -c {self.cost!r} -q"
        problems = OneVsRest(words, labels, options, self.prune, active=self.penalty == "l2")

        def fit(group: int) -> tuple[int, list[Column]]:
            return group, problems.fit(groups[group])

        return Workers(fit, len(groups), self.workers or available_cores())

    def rank_rows(self, words: csr_array, k: int) -> Ranking:
        size = max(1, min(ROWS, DENSE // self.num_labels))
        blocks = [words[start : start + size] for start in range(0, max(words.shape[0], 1), size)]
        tops = in_threads(lambda block: top_labels(torch.from_numpy(self._margins(block)), k), blocks)
        margins, labels = (torch.cat(part) for part in zip(*((top.scores, top.labels) for top in tops), strict=True))
        return Ranking(probabilities(self.slope * margins) * (labels >= 0), labels)

    def evidence(self, ids: np.ndarray, values: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Weights times values; the scale is not that of margins if they are normalized."""
        assert self.weights is not None
        return np.asarray(self.weights[ids][:, labels].toarray().T * values)

    def _margins(self, words: csr_array) -> np.ndarray:
        """Margins of all labels, (documents, num_labels)."""
        margins: np.ndarray = (words @ self.weights).toarray()
        if self.normalize and (norms := self.weight_norms()) is not None:
            margins /= norms.clamp_min(LEAST_NORM).numpy() ** self.normalize
        margins += self.bias
        return margins

    def get_extra_state(self) -> dict[str, Any] | None:
        if self.weights is None:
            return None
        parts = {"values": self.weights.data, "labels": self.weights.indices, "starts": self.weights.indptr}
        return {name: torch.from_numpy(part) for name, part in (parts | {"bias": self.bias}).items()}

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        if state is None:
            self.weights, self.bias = None, np.zeros(0, np.float32)
            return
        try:
            parts = (state[name].cpu().numpy() for name in ("values", "labels", "starts", "bias"))
            values, labels, starts, bias = parts
            Lists(starts, labels).check(self.num_features, self.num_labels)
            if starts.dtype != labels.dtype or {values.dtype, bias.dtype} != {np.dtype(np.float32)}:
                raise ValueError(f"arrays of type {starts.dtype}, {labels.dtype}, {values.dtype} and {bias.dtype}")
            if values.shape != labels.shape or bias.shape != (self.num_labels,):
                raise ValueError(f"{values.shape} weights and {bias.shape} biases")
            if not (np.isfinite(values).all() and np.isfinite(bias).all()):
                raise ValueError("NaN or infinite weights")
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            raise UserError(f"the SVM of the checkpoint is damaged: {first_line(error)}") from error
        self.weights, self.bias = csr_array((values, labels, starts), (len(starts) - 1, self.num_labels)), bias
