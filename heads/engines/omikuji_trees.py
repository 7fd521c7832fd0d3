"""Label trees of linear classifiers, fitted by omikuji."""

from __future__ import annotations

import importlib
import importlib.util
import itertools
import json
import sys
import tempfile
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
from heads.base import Ranking, TransitionContext
from heads.engines.cbor import read_cbor
from heads.engines.linear_engine import LinearEngine
from heads.engines.omikuji_files import Classifiers, check_tree, column_norms, leaves, paths, values_in
from heads.engines.processes import Workers
from heads.engines.sparse_text import write_documents
from zoo.core.cores import available_cores, in_threads
from zoo.core.errors import MANY, UserError, check_low, check_range, first_line
from zoo.core.extras import missing_extra

MODEL = "model"  # folder name
POLL = 0.5  # seconds between checks whether the run is to stop
ROWS = 16  # documents per task of a ranking thread


class Parabel(LinearEngine):
    """Balanced binary label trees with a linear classifier per cluster and label.

    Prabhu et al. 2018, "Parabel: Partitioned Label Trees for Extreme Classification"
    (https://doi.org/10.1145/3178876.3185998). The score of a label is the product of the probabilities
    exp(-max(0, 1 - margin)^2) on its path, averaged over trees. Two runs differ slightly, since omikuji seeds its
    clustering from system entropy.

    Args:
        trees: number of trees whose scores are averaged.
        beam: beam width of the search.
        max_leaf: clusters with fewer labels are not split.
        max_depth: maximum number of levels of clusters.
        cost: penalty of errors, relative to the norm of the weights (C).
        prune: weights with a smaller magnitude are dropped.
        words: arguments of `LinearEngine`.
    """

    clusters, balanced = 2, True  # children of a cluster, and whether they have equal sizes

    def __init__(
        self,
        dim: int,
        space: LabelSpace,
        trees: int = 3,
        beam: int = 10,
        max_leaf: int = 100,
        max_depth: int = 20,
        cost: float = 1.0,
        prune: float = 0.1,
        **words: Any,
    ) -> None:
        super().__init__(dim, space, **words)
        check_low(1, beam=beam)
        check_range(1, MANY, trees=trees, max_depth=max_depth)
        check_low(max(self.clusters, 2), max_leaf=max_leaf)  # a cluster needs as many labels as children
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
        self.files: dict[str, Tensor] | None = None  # files of the model as bytes, by name
        self.model: Any = None
        self.paths: list[dict[int, Classifiers]] | None = None  # of the labels of each tree; read for explanations
        library()

    @property
    def fitted(self) -> bool:
        return self.model is not None

    def learn(self, words: csr_array, labels: csr_array, ctx: TransitionContext) -> None:
        with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
            train = partial(train_trees, words, labels, self.hyper, Path(folder))
            # In a separate process: omikuji cannot be interrupted, and draws progress bars.
            with Workers(train, 1, 1) if ctx.first else nullcontext() as workers:
                for _ in ctx.track(itertools.count(), "training trees"):
                    done = workers is not None and bool(workers.receive(POLL))
                    if ctx.sum(torch.tensor(float(done), device=self.tfidf.idf.device)) > 0:  # on all processes
                        break
            if ctx.first:
                self._load(Path(folder) / MODEL)

    def rank_rows(self, words: csr_array, k: int) -> Ranking:
        words.sort_indices()  # omikuji requires it
        labels = np.full((words.shape[0], k), self.num_labels, np.uint32)
        scores = np.zeros(labels.shape, np.float32)
        rank = partial(rank_documents, self.model, self.model._thread_pool.ptr, self.beam, words, labels, scores)
        in_threads(rank, range(0, words.shape[0], ROWS))  # omikuji itself uses one thread per tree
        return in_order(
            torch.from_numpy(scores).clamp(0, 1), torch.from_numpy(labels.astype(np.int64)), self.num_labels
        )

    def weight_norms(self) -> Tensor | None:
        """Mean over trees of the norms in the leaves. The library does not expose weights, but its files have them."""
        if self.files is None:
            return None
        trees = [content for name, content in self.files.items() if name.endswith(".cbor")]
        norms = np.zeros(self.num_labels)
        for tree in trees:
            for labels, weights in leaves(read_cbor(tree.numpy().tobytes())):
                norms[labels] += column_norms(weights) / len(trees)
        return torch.from_numpy(norms).float()

    def evidence(self, ids: np.ndarray, values: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Shares of words in the margins on the way to a label, summed over its levels; the mean over trees."""
        if self.paths is None:
            content = [file for name, file in (self.files or {}).items() if name.endswith(".cbor")]
            self.paths = [dict(paths(read_cbor(tree.numpy().tobytes()))) for tree in content]
        found = np.zeros((len(labels), len(ids)))
        for tree in self.paths:
            for row, label in zip(found, labels.tolist(), strict=True):
                for weights, column in tree.get(label, ()):
                    row += values * values_in(weights, column, ids) / len(self.paths)
        return found

    def _load(self, folder: Path) -> None:
        self.paths = None
        self.files = {file.name: torch.from_numpy(np.fromfile(file, np.uint8)) for file in sorted(folder.iterdir())}
        self.model = load_model(folder)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy through the state dict: omikuji's objects cannot be copied."""
        twin = self.unfitted()
        twin.load_state_dict(self.state_dict())
        return twin.train(self.training)

    def get_extra_state(self) -> dict[str, Any] | None:
        return self.files

    def set_extra_state(self, state: dict[str, Any] | None) -> None:
        if state is None:
            self.files = self.model = None
            return
        self._check_files(state)
        if self.files is None or not same_files(self.files, state):
            self._check_trees(state)
            with tempfile.TemporaryDirectory(prefix="zoo-") as folder:
                for name, content in state.items():
                    try:
                        (Path(folder) / name).write_bytes(content.cpu().numpy().data)
                    except OSError as error:
                        raise cannot_write(Path(folder) / name, error) from None
                self._load(Path(folder))

    def _check_files(self, state: Any) -> None:
        """Refuse other files than omikuji writes for these trees."""
        expected = {"settings.json", *(f"tree{number}.cbor" for number in range(self.settings["trees"]))}
        if not isinstance(state, dict) or state.keys() != expected:
            raise UserError(f"the omikuji trees of the checkpoint are damaged: expected {', '.join(sorted(expected))}")
        if any(not isinstance(v, Tensor) or v.dtype != torch.uint8 or v.dim() != 1 for v in state.values()):
            raise UserError("the omikuji trees of the checkpoint are damaged: their files are not bytes")
        try:
            width = json.loads(state["settings.json"].cpu().numpy().tobytes())["n_features"]
        except (KeyError, TypeError, ValueError) as error:
            raise UserError("the omikuji trees of the checkpoint are damaged: settings.json cannot be read") from error
        if width != self.num_features:
            raise UserError(f"the trees of the checkpoint read {width} features, the model has {self.num_features:,}")

    def _check_trees(self, state: dict[str, Tensor]) -> None:
        """Refuse indices that are out of range, which abort the process, and weights that are not finite."""
        for name in sorted(state.keys() - {"settings.json"}):
            try:
                check_tree(read_cbor(state[name].cpu().numpy().tobytes()), self.num_features, self.num_labels)
            except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
                raise UserError(f"the omikuji trees of the checkpoint are damaged: {first_line(error)}") from error


class Bonsai(Parabel):
    """Shallow, wide label trees: k-means with up to 100 clusters of any size.

    Khandagale et al. 2020, "Bonsai: diverse and shallow trees for extreme multi-label classification"
    (https://arxiv.org/abs/1904.08249), with labels represented by the centroids of their documents. Scores, and the
    differences between runs, are as in `Parabel`.

    Args:
        max_depth: maximum number of levels, including that of the labels.
        common: arguments of `Parabel`.
    """

    clusters, balanced = 100, False

    def __init__(self, dim: int, space: LabelSpace, max_depth: int = 3, **common: Any) -> None:
        super().__init__(dim, space, max_depth=max_depth, **common)


def train_trees(words: csr_array, labels: csr_array, hyper: dict[str, Any], folder: Path, _: int) -> bool:
    """Train a model and save it in `folder`, in a worker process; omikuji reads its data from a file."""
    data = folder / "documents.txt"
    try:
        write_documents(data, words, labels)
    except OSError as error:
        raise cannot_write(data, error) from None
    parameters = library().Model.default_hyper_param()
    for name, value in hyper.items():
        setattr(parameters, name, value)
    model = library().Model.train_on_data(str(data), parameters, available_cores())
    data.unlink()  # make room for the model
    try:
        model.save(str(folder / MODEL))
    except RuntimeError as error:
        raise cannot_write(folder, error) from None
    return True


def rank_documents(
    model: Any, pool: Any, beam: int, words: csr_array, labels: np.ndarray, scores: np.ndarray, start: int
) -> None:
    """Fill rows of `labels` and `scores`, without the Python lists of `Model.predict`."""
    ffi, lib = library().ffi, library().lib
    size = labels.shape[1]
    for row in range(start, min(start + ROWS, words.shape[0])):
        own = slice(*words.indptr[row : row + 2])
        ids, values = words.indices[own].astype(np.uint32), words.data[own]
        given = (len(ids), ffi.from_buffer("uint32_t[]", ids), ffi.from_buffer("float[]", values))
        found = (ffi.from_buffer("uint32_t[]", labels[row]), ffi.from_buffer("float[]", scores[row]))
        lib.omikuji_predict(model._model_ptr, beam, *given, size, *found, pool)


def in_order(scores: Tensor, labels: Tensor, num_labels: int) -> Ranking:
    """Break ties in favor of the lower label, which is more frequent; omikuji's order is arbitrary."""
    labels, by_label = labels.sort(dim=1)
    scores, best = scores.gather(1, by_label).sort(dim=1, descending=True, stable=True)
    labels = labels.gather(1, best)
    return Ranking(scores, labels.masked_fill(labels >= num_labels, -1))


def same_files(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether both are the same model, as when testing reloads the checkpoint that a fit has just written."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name].cpu()) for name in one)


def load_model(folder: Path) -> Any:
    try:
        return library().Model.load(str(folder))
    except RuntimeError as error:
        raise UserError(
            "the trees of the checkpoint cannot be read: it may be damaged, or from another version of omikuji"
        ) from error


def cannot_write(file: Path, error: Exception) -> UserError:
    reason = error.strerror if isinstance(error, OSError) else error
    return UserError(f"cannot write {file}: {reason}; set the environment variable TMPDIR to another folder")


@cache
def library() -> ModuleType:
    """Import omikuji without the logger that it installs on standard output, where predictions go."""
    try:
        found = importlib.util.find_spec("omikuji")
        if found is None or not found.submodule_search_locations:
            raise ModuleNotFoundError(name="omikuji")
        if "omikuji" not in sys.modules:
            package = ModuleType("omikuji")
            package.__path__ = list(found.submodule_search_locations)
            sys.modules["omikuji"] = package  # a stand-in, so that the native part can be imported first
            try:
                native = importlib.import_module("omikuji._libomikuji")
                native.ffi.init_once(lambda: None, "omikuji_init_logger")
            finally:
                del sys.modules["omikuji"]
        return importlib.import_module("omikuji")
    except ImportError as error:
        raise missing_extra(error, "linear") from None
