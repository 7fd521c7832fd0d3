"""One support vector machine for each label, fitted by liblinear."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csc_array, csr_array, csr_matrix
from torch import Tensor

from datamodules.batch import LabelSpace
from heads.base import Ranking, TransitionContext, check_low, probabilities, top_labels
from heads.linear_engine import LinearEngine, missing_library
from heads.workers import Workers, cores

GROUP = 16  # labels that a process fits, whatever the number of processes: another one would change the result
DENSE = 2**22  # scores of a block of documents, at most
ROWS = 64  # documents of a block: enough blocks of a batch for all cores


class OneVsRestSvm(LinearEngine):
    """A linear classifier with squared hinge loss and L2 regularisation for each label on its own, on TF-IDF.

    The method that joint training has to beat, with the loss of DiSMEC (Babbar and Schoelkopf 2017), which drops small
    weights afterwards, too; by liblinear's dual solver, with a bias. That draws the order of documents from a state
    which it keeps from call to call and nobody can set: a group of labels is fitted in a process that begins with a
    fresh one, so the result is the same in every run and with any number of workers.

    Args:
        min_documents: words that fewer training documents have are left out.
        sublinear: count words by the logarithm; False takes counts, or values of features, as they are.
        lead: words among the first so many of a document, and pairs of neighbours there, count once more on their own.
        cost: of errors, relative to the size of weights (C).
        prune: weights of a smaller magnitude are dropped; 0 keeps all.
        slope: a label's probability is the sigmoid of so many times its margin.
        workers: processes that fit labels; as many as there are cores by default.
    """

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        min_documents: int = 2,
        sublinear: bool = True,
        lead: int = 0,
        cost: float = 1.0,
        prune: float = 0.01,
        slope: float = 4.0,
        workers: int | None = None,
    ) -> None:
        super().__init__(dim, space, min_documents, sublinear, lead)
        check_low(1e-9, cost=cost, slope=slope)
        check_low(0, prune=prune)
        check_low(1, workers=workers)
        self.cost, self.prune, self.slope, self.workers = cost, prune, slope, workers
        self.settings |= {"cost": cost, "prune": prune, "slope": slope, "workers": workers}
        self.weights: csr_array | None = None  # (vocabulary, num_labels)
        self.bias = np.zeros(0, np.float32)  # (num_labels,)

    @property
    def fitted(self) -> bool:
        return self.weights is not None

    @property
    def num_weights(self) -> int:
        return 0 if self.weights is None else int(self.weights.nnz) + len(self.bias)

    def weight_norms(self) -> Tensor | None:
        """Rare labels have short ones."""
        if self.weights is None:
            return None
        squares = np.bincount(self.weights.indices, self.weights.data.astype(np.float64) ** 2, self.num_labels)
        return torch.from_numpy(np.sqrt(squares)).float()

    def check_plan(self, transitions: Sequence[str]) -> None:
        super().check_plan(transitions)
        if "fit" in transitions:
            library()  # now, not after hours of other stages; a fitted model ranks without it

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
            starts = starts.astype(np.int32 if starts[-1] < 2**31 else np.int64)  # and with them the numbers of labels
            parts = (np.concatenate(part) for part in ([c.values for c in columns], [c.words for c in columns]))
            self.weights = csc_array((*parts, starts), (words.shape[1], self.num_labels)).tocsr()
            self.bias = np.array([column.bias for column in columns], np.float32)

    def _workers(self, words: csr_array, labels: csr_array, groups: list[range]) -> Workers:
        problem = Problem(words, labels, self.cost, self.prune)
        return Workers(lambda group: (group, problem.fit_all(groups[group])), len(groups), self.workers or cores())

    def rank_rows(self, words: csr_array, k: int) -> Ranking:
        size = max(1, min(ROWS, DENSE // self.num_labels))
        blocks = [words[start : start + size] for start in range(0, max(words.shape[0], 1), size)]
        with ThreadPoolExecutor(min(cores(), max(len(blocks), 1))) as threads:  # scipy's products let others work
            tops = list(threads.map(lambda block: top_labels(torch.from_numpy(self._margins(block)), k), blocks))
        margins, labels = (torch.cat(part) for part in zip(*((top.scores, top.labels) for top in tops), strict=True))
        return Ranking(probabilities(self.slope * margins) * (labels >= 0), labels)

    def _margins(self, words: csr_array) -> np.ndarray:
        """Scores of all labels, (documents, num_labels)."""
        margins: np.ndarray = (words @ self.weights).toarray()
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
        values, labels, starts = (state[name].cpu().numpy() for name in ("values", "labels", "starts"))
        self.weights = csr_array((values, labels, starts), (len(starts) - 1, self.num_labels))
        self.bias = state["bias"].cpu().numpy()


class Column(NamedTuple):
    """The classifier of a label."""

    words: np.ndarray  # int32, ascending
    values: np.ndarray  # float32
    bias: float


class Problem:
    """Documents in liblinear's form, and their labels."""

    def __init__(self, words: csr_array, labels: csr_array, cost: float, prune: float) -> None:
        liblinear = library()
        self.size, self.prune = words.shape[0], prune
        # Only words that occur: liblinear keeps a number for each one, and is fast while these fit into the cache.
        occurs = np.bincount(words.indices, minlength=words.shape[1]) > 0
        self.words = np.flatnonzero(occurs)
        words = csr_matrix((words.data, (occurs.cumsum() - 1)[words.indices], words.indptr), (self.size, occurs.sum()))
        self.documents = csc_array(labels)  # of each label
        self.problem = liblinear.problem(np.ones(self.size), words.astype(np.float64), 1.0)
        self.parameter = liblinear.parameter(f"-s 1 -c {cost!r} -q")  # L2-regularised squared hinge loss, the dual
        self.signs = np.empty(self.size)
        self.problem.y = self.signs.ctypes.data_as(ctypes.POINTER(ctypes.c_double))

    def fit_all(self, labels: range) -> list[Column]:
        return [self.fit(label) for label in labels]

    def fit(self, label: int) -> Column:
        """A label that no document has, or every one, needs no machine."""
        positive = self.documents.indices[slice(*self.documents.indptr[label : label + 2])]
        if len(positive) in (0, self.size):
            return Column(np.zeros(0, np.int32), np.zeros(0, np.float32), 1.0 if len(positive) else -1.0)
        self.signs[:] = -1
        self.signs[positive] = 1
        train, free = library().liblinear.train, library().liblinear.free_and_destroy_model
        model = train(self.problem, self.parameter)
        sign = model.contents.label[0]  # that of positive margins
        weights = sign * np.ctypeslib.as_array(model.contents.w, (self.problem.n,))
        free(ctypes.byref(model))
        kept = np.flatnonzero((np.abs(weights[:-1]) >= self.prune) & (weights[:-1] != 0))
        return Column(self.words[kept].astype(np.int32), weights[kept].astype(np.float32), float(weights[-1]))


def library() -> Any:
    """liblinear with all its structures; it is imported where it is needed, for not everybody has it."""
    try:
        from liblinear import liblinear
    except ImportError as error:
        raise missing_library(error) from None
    return liblinear
