"""Label trees of linear classifiers, fitted by omikuji."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import cache, partial
from pathlib import Path
from types import ModuleType
from typing import Any, Self

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor

from datamodules.batch import LabelSpace
from datamodules.errors import UserError
from heads.base import Ranking, TransitionContext, check_low
from heads.linear_engine import LinearEngine, missing_library
from heads.sparse_text import write_documents
from heads.workers import Workers, cores

MODEL = "model"  # its folder
POLL = 0.5  # seconds between two looks at whether the run is to stop
ROWS = 16  # documents that a thread ranks at a time


class Parabel(LinearEngine):
    """Trees that halve the labels into balanced clusters, with a linear classifier for each cluster and label.

    After Prabhu et al. 2018, "Parabel: Partitioned Label Trees for Extreme Classification". A label's score is the
    product of probabilities on the way to it, exp(-max(0, 1 - margin)^2) each, and the mean over trees, so it is one
    as well. Two runs differ a little, whatever the seed: omikuji draws the first centres of clusters from the
    system's entropy, and nothing seeds it.

    Args:
        min_documents: words that fewer training documents have are left out.
        sublinear: count words by the logarithm; False takes counts, or values of features, as they are.
        lead: words among the first so many of a document, and pairs of neighbours there, count once more on their own.
        trees: whose scores are averaged.
        beam: clusters of a level that a ranking goes on from.
        max_leaf: clusters with fewer labels are not split.
        max_depth: levels of clusters at most.
        cost: of errors of a classifier, relative to the size of weights (C).
        prune: weights of a smaller magnitude are dropped.
    """

    clusters, balanced = 2, True  # that a cluster is split into, and whether they are of one size

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        min_documents: int = 2,
        sublinear: bool = True,
        lead: int = 0,
        trees: int = 3,
        beam: int = 10,
        max_leaf: int = 100,
        max_depth: int = 20,
        cost: float = 1.0,
        prune: float = 0.1,
    ) -> None:
        super().__init__(dim, space, min_documents, sublinear, lead)
        check_low(1, trees=trees, beam=beam, max_depth=max_depth)
        check_low(max(self.clusters, 2), max_leaf=max_leaf)  # a cluster cannot be split into more than it has
        check_low(1e-9, cost=cost)
        check_low(0, prune=prune)
        self.beam = beam
        self.hyper = {
            "n_trees": trees,
            "min_branch_size": max_leaf,
            "max_depth": max_depth,
            "linear_c": cost,
            "linear_weight_threshold": prune,
            "cluster_k": self.clusters,
            "cluster_balanced": self.balanced,
        }
        self.settings |= {"trees": trees, "beam": beam, "max_leaf": max_leaf, "max_depth": max_depth}
        self.settings |= {"cost": cost, "prune": prune}
        self.files: dict[str, Tensor] | None = None  # of the model, by name, each as bytes
        self.model: Any = None
        library()

    @property
    def fitted(self) -> bool:
        return self.model is not None

    def learn(self, words: csr_array, labels: csr_array, ctx: TransitionContext) -> None:
        with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
            train = partial(train_trees, words, labels, self.hyper, Path(folder))
            # In a process of its own: omikuji cannot be stopped, and draws bars on the terminal.
            with Workers(train, 1, 1) if ctx.first else nullcontext() as workers:
                for _ in ctx.track(itertools.count(), "training trees"):
                    done = workers is not None and bool(workers.receive(POLL))
                    if ctx.sum(torch.tensor(float(done), device=self.tfidf.idf.device)) > 0:  # all go on together
                        break
            if ctx.first:
                self._load(Path(folder) / MODEL)

    def rank_rows(self, words: csr_array, k: int) -> Ranking:
        words.sort_indices()  # omikuji relies on it
        labels = np.full((words.shape[0], k), self.num_labels, np.uint32)
        scores = np.zeros(labels.shape, np.float32)
        rank = partial(rank_documents, self.model, self.model._thread_pool.ptr, self.beam, words, labels, scores)
        with ThreadPoolExecutor(cores()) as threads:  # beside the library's own, one for each tree, that pays
            list(threads.map(rank, range(0, words.shape[0], ROWS)))
        return in_order(
            torch.from_numpy(scores).clamp(0, 1), torch.from_numpy(labels.astype(np.int64)), self.num_labels
        )

    def _load(self, folder: Path) -> None:
        self.files = {file.name: torch.from_numpy(np.fromfile(file, np.uint8)) for file in sorted(folder.iterdir())}
        self.model = load_model(folder)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """omikuji's own objects cannot be copied; what they were read from can."""
        twin = self.unfitted()
        twin.load_state_dict(self.state_dict())
        return twin.train(self.training)

    def get_extra_state(self) -> dict[str, Any] | None:
        return self.files

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        if state is None:
            self.files = self.model = None
        elif self.files is None or not same_files(self.files, state):
            with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
                for name, content in state.items():
                    write(Path(folder) / name, content.cpu().numpy())
                self._load(Path(folder))


class Bonsai(Parabel):
    """Trees that are shallow and wide: k-means splits labels into up to a hundred clusters of any size.

    After Khandagale et al. 2020, "Bonsai: diverse and shallow trees for extreme multi-label classification", with the
    centroids of labels' documents. Scores, and why two runs differ a little, are as in `Parabel`.

    Args:
        min_documents: words that fewer training documents have are left out.
        sublinear: count words by the logarithm; False takes counts, or values of features, as they are.
        lead: words among the first so many of a document, and pairs of neighbours there, count once more on their own.
        trees: whose scores are averaged.
        beam: clusters of a level that a ranking goes on from.
        max_leaf: clusters with fewer labels are not split.
        max_depth: levels at most, that of the labels among them.
        cost: of errors of a classifier, relative to the size of weights (C).
        prune: weights of a smaller magnitude are dropped.
    """

    clusters, balanced = 100, False

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        min_documents: int = 2,
        sublinear: bool = True,
        lead: int = 0,
        trees: int = 3,
        beam: int = 10,
        max_leaf: int = 100,
        max_depth: int = 3,
        cost: float = 1.0,
        prune: float = 0.1,
    ) -> None:
        super().__init__(dim, space, min_documents, sublinear, lead, trees, beam, max_leaf, max_depth, cost, prune)


def train_trees(words: csr_array, labels: csr_array, hyper: dict[str, Any], folder: Path, number: int) -> bool:
    """What the worker does: a model in `folder`, from a file there, for omikuji takes nothing else."""
    data = folder / "documents.txt"
    try:
        write_documents(data, words, labels)
    except OSError as error:
        raise cannot_write(data, error) from None
    parameters = library().Model.default_hyper_param()
    for name, value in hyper.items():
        setattr(parameters, name, value)
    model = library().Model.train_on_data(str(data), parameters, cores())
    data.unlink()  # there may be room for one of the two
    try:
        model.save(str(folder / MODEL))
    except RuntimeError as error:
        raise cannot_write(folder, error) from None
    return True


def rank_documents(
    model: Any, pool: Any, beam: int, words: csr_array, labels: np.ndarray, scores: np.ndarray, start: int
) -> None:
    """Fill the rows of some documents; `Model.predict` would make Python lists of each."""
    ffi, lib = library().ffi, library().lib
    size = labels.shape[1]
    for row in range(start, min(start + ROWS, words.shape[0])):
        own = slice(*words.indptr[row : row + 2])
        ids, values = words.indices[own].astype(np.uint32), words.data[own]
        given = (len(ids), ffi.from_buffer("uint32_t[]", ids), ffi.from_buffer("float[]", values))
        found = (ffi.from_buffer("uint32_t[]", labels[row]), ffi.from_buffer("float[]", scores[row]))
        lib.omikuji_predict(model._model_ptr, beam, *given, size, *found, pool)


def in_order(scores: Tensor, labels: Tensor, num_labels: int) -> Ranking:
    """Of equal scores the lower label, the more frequent one, goes first; omikuji has them in any order."""
    labels, by_label = labels.sort(dim=1)
    scores, best = scores.gather(1, by_label).sort(dim=1, descending=True, stable=True)
    labels = labels.gather(1, best)
    return Ranking(scores, labels.masked_fill(labels == num_labels, -1))


def same_files(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether they are the same model: the test after a fit reads back what it has just written."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name].cpu()) for name in one)


def load_model(folder: Path) -> Any:
    try:
        return library().Model.load(str(folder))
    except RuntimeError as error:
        raise UserError(
            "the trees of the checkpoint cannot be read: it may be damaged, or of another omikuji"
        ) from error


def write(file: Path, content: np.ndarray) -> None:
    try:
        file.write_bytes(content.data)
    except OSError as error:
        raise cannot_write(file, error) from None


def cannot_write(file: Path, error: Exception) -> UserError:
    reason = error.strerror if isinstance(error, OSError) else error
    return UserError(f"cannot write {file}: {reason}; the environment variable TMPDIR can name another folder")


@cache
def library() -> ModuleType:
    """omikuji, without the log that it begins on standard output, where predictions go, when it is imported."""
    try:
        found = importlib.util.find_spec("omikuji")
        if found is None or not found.submodule_search_locations:
            raise ModuleNotFoundError(name="omikuji")
        if "omikuji" not in sys.modules:
            package = ModuleType("omikuji")
            package.__path__ = list(found.submodule_search_locations)
            sys.modules["omikuji"] = package  # for a moment: so that its parts can be imported without it
            try:
                native = importlib.import_module("omikuji._libomikuji")
                native.ffi.init_once(lambda: None, "omikuji_init_logger")
            finally:
                del sys.modules["omikuji"]
        return importlib.import_module("omikuji")
    except ImportError as error:
        raise missing_library(error) from None
