"""Parabel and Bonsai: what is passed to omikuji, and what it returns."""

import copy
import errno
import io
import logging
import os
import struct
import sys
import tempfile

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from datamodules.batch import Targets
from heads import Bonsai, Parabel, TransitionContext
from heads.engines.cbor import read_cbor
from heads.engines.omikuji_files import check_tree, column_norms, leaves
from heads.engines.omikuji_trees import in_order, library
from heads.engines.sparse_text import write_documents
from heads.tree.label_tree import label_matrix
from tests.support.engines import LABELS, corpus, space_of
from tests.support.errors import raises
from zoo.core.errors import UserError

both = pytest.mark.parametrize(("kind", "small"), [(Parabel, {"max_leaf": 3}), (Bonsai, {"max_leaf": 100})])


@pytest.fixture(scope="module")
def fitted():
    counts, targets = corpus(200)
    engine = Parabel(1, space_of(targets), max_leaf=3)
    engine.fit(TransitionContext(words=counts, targets=targets))
    return engine


@both
def test_both_learn(kind, small):
    counts, targets = corpus(200)
    engine = kind(1, space_of(targets), **small)
    engine.fit(TransitionContext(words=counts, targets=targets))
    more, truth = corpus(100, seed=5)
    ranking = engine.rank_rows(engine.tfidf.matrix(more), 5)
    assert truth.dense(LABELS).gather(1, ranking.labels[:, :1]).mean() > 0.8
    assert ((ranking.scores >= 0) & (ranking.scores <= 1)).all()
    assert (ranking.scores.diff(dim=1) <= 0).all()


def test_rankings_equal_those_of_the_library(fitted):
    words = fitted.tfidf.matrix(corpus(40, seed=1)[0])
    words.sort_indices()
    ranking = fitted.rank_rows(words, LABELS + 2)
    for row in range(40):
        own = slice(*words.indptr[row : row + 2])
        pairs = list(zip(words.indices[own].tolist(), words.data[own].tolist(), strict=True))
        expected = fitted.model.predict(pairs, beam_size=10, top_k=LABELS)
        expected.sort(key=lambda pair: (-pair[1], pair[0]))
        size = len(expected)
        assert ranking.labels[row, :size].tolist() == [label for label, _ in expected]
        assert np.allclose(ranking.scores[row, :size], [score for _, score in expected])
        assert ranking.labels[row, size:].eq(-1).all()
        assert ranking.scores[row, size:].eq(0).all()


def test_a_narrow_beam_leaves_short_rankings():
    counts, targets = corpus(200)
    engine = Parabel(1, space_of(targets), max_leaf=3, trees=1, beam=1)
    engine.fit(TransitionContext(words=counts, targets=targets))
    labels = engine.rank_rows(engine.tfidf.matrix(counts), LABELS).labels
    assert (labels[:, 0] >= 0).all()
    assert (labels[:, -1] == -1).all()


def test_ranking_no_documents_and_documents_without_words(fitted):
    assert fitted.rank_rows(csr_array((0, 40), dtype=np.float32), 3).labels.shape == (0, 3)
    one = fitted.rank_rows(csr_array((2, 40), dtype=np.float32), 3)
    assert (one.labels >= 0).all()
    assert one.scores.isfinite().all()


def test_training_with_documents_without_words_or_labels():
    counts, targets = corpus(60)
    dense = counts.toarray()
    dense[:5] = 0
    lists = [targets.indices[targets.indptr[i] : targets.indptr[i + 1]].tolist() for i in range(60)]
    lists[3:8] = [[]] * 5
    lists[0] = [LABELS - 1]  # a label of a document without words alone
    targets = Targets.from_lists([[x for x in row if x != LABELS - 1] if i else row for i, row in enumerate(lists)])
    engine = Parabel(1, space_of(targets), max_leaf=3)
    engine.fit(TransitionContext(words=csr_array(dense), targets=targets))
    assert engine.rank_rows(engine.tfidf.matrix(csr_array(dense)), 3).scores.isfinite().all()


def test_ties_go_to_the_lower_label():
    ranking = in_order(torch.tensor([[0.5, 0.5, 0.1, 0.0]]), torch.tensor([[7, 2, 4, 9]]), num_labels=9)
    assert ranking.labels.tolist() == [[2, 7, 4, -1]]


def test_state_is_plain_and_complete(fitted):
    file = io.BytesIO()
    torch.save(fitted.state_dict(), file)
    file.seek(0)
    other = Parabel(1, fitted.space, max_leaf=3)
    other.load_state_dict(torch.load(file, weights_only=True))
    words = fitted.tfidf.matrix(corpus(40, seed=1)[0])
    one, two = (engine.rank_rows(words, 5) for engine in (fitted, other))
    assert torch.equal(one.labels, two.labels)
    assert torch.equal(one.scores, two.scores)
    model = other.model
    other.set_extra_state(fitted.get_extra_state())
    assert other.model is model  # the same bytes are not read again
    twin = copy.deepcopy(fitted)
    assert torch.equal(twin.rank_rows(words, 5).labels, one.labels)
    other.set_extra_state(None)
    assert other.pending == ("fit",)


@pytest.mark.parametrize("name", ["{tmp}/written", "../written", "tree9.cbor"])
def test_states_with_other_files_write_nothing(fitted, tmp_path, name):
    name, other = name.format(tmp=tmp_path), Parabel(1, fitted.space, max_leaf=3)
    state = fitted.get_extra_state()
    with raises(UserError, "omikuji"):
        other.set_extra_state(state | {name: state["tree0.cbor"]})
    assert list(tmp_path.iterdir()) == []


def test_damaged_states_are_rejected(fitted):
    other = Parabel(1, fitted.space, max_leaf=3)
    state = {name: content[: len(content) // 2] for name, content in fitted.get_extra_state().items()}
    with raises(UserError, "omikuji"):
        other.set_extra_state(state)
    assert not other.fitted


def test_documents_are_written_as_text(tmp_path):
    words = csr_array(np.array([[0, 0.5, 0.25], [0, 0, 0], [1, 0, 0], [0, 0, 0]], np.float32))
    labels = label_matrix(Targets.from_lists([[0, 2], [1], [], []]), 3)
    write_documents(tmp_path / "a.txt", words, labels)
    assert (tmp_path / "a.txt").read_text() == "4 3 3\n0,2 1:0.5 2:0.25\n1\n 0:1\n\n"


def test_blocks_do_not_change_the_text(tmp_path, monkeypatch):
    counts, targets = corpus(50)
    labels = label_matrix(targets, LABELS)
    write_documents(tmp_path / "one", counts, labels)
    monkeypatch.setattr("heads.engines.sparse_text.AT_ONCE", 7)
    write_documents(tmp_path / "many", counts, labels)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "many").read_bytes()


def test_a_full_disk_is_reported_and_leaves_no_files(monkeypatch, tmp_path):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("heads.engines.omikuji_trees.write_documents", full)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    counts, targets = corpus()
    with raises(UserError, "documents.txt", "TMPDIR"):
        Parabel(1, space_of(targets)).fit(TransitionContext(words=counts, targets=targets))
    assert list(tmp_path.iterdir()) == []


def test_no_files_are_left(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    counts, targets = corpus()
    engine = Parabel(1, space_of(targets))
    engine.fit(TransitionContext(words=counts, targets=targets))
    Parabel(1, space_of(targets)).set_extra_state(engine.get_extra_state())
    assert list(tmp_path.iterdir()) == []


def test_the_library_writes_nothing_to_stdout_and_stderr(capfd, caplog, fitted):
    """Its native code writes to the file descriptors."""
    caplog.set_level(logging.ERROR, logger="zoo")
    counts, targets = corpus(200)
    engine = Parabel(1, space_of(targets), max_leaf=3)
    engine.load_state_dict(fitted.state_dict())
    engine.rank_rows(engine.tfidf.matrix(counts), 3)
    engine.fit(TransitionContext(words=counts, targets=targets))
    assert capfd.readouterr() == ("", "")


def test_a_missing_library_is_reported(monkeypatch):
    library.cache_clear()
    monkeypatch.setitem(sys.modules, "omikuji", None)
    _, targets = corpus()
    with raises(UserError, "omikuji", "xmc-zoo[linear]"):
        Parabel(1, space_of(targets))
    monkeypatch.undo()
    library.cache_clear()


@pytest.mark.parametrize(
    ("kind", "setting"),
    [(Parabel, {"trees": 0}), (Parabel, {"beam": 0}), (Parabel, {"max_leaf": 1}), (Bonsai, {"max_leaf": 99})],
)
def test_invalid_settings_are_rejected(kind, setting):
    _, targets = corpus()
    ((name, value),) = setting.items()
    with raises(UserError, f"`{name}={value}`"):
        kind(1, space_of(targets), **setting)


def test_unfitted_copies_have_the_same_settings():
    _, targets = corpus()
    words = {"min_documents": 3, "sublinear": False, "lead": 5}
    engine = Bonsai(1, space_of(targets), 4, trees=2, beam=7, max_leaf=150, cost=0.5, prune=0.2, **words)
    twin = engine.unfitted()
    assert isinstance(twin, Bonsai)
    assert (twin.hyper, twin.beam) == (engine.hyper, engine.beam)
    assert twin.hyper["n_trees"] == 2


def test_items_of_the_rfc_are_read():
    """Examples of RFC 8949, Appendix A."""
    examples = {
        "00": 0,
        "1864": 100,
        "1b000000e8d4a51000": 1000000000000,
        "3903e7": -1000,
        "f93e00": 1.5,
        "fa47c35000": 100000.0,
        "fb3ff199999999999a": 1.1,
        "f5": True,
        "f6": None,
        "4401020304": b"\x01\x02\x03\x04",
        "6449455446": "IETF",
        "8301820203820405": [1, [2, 3], [4, 5]],
        "a26161016162820203": {"a": 1, "b": [2, 3]},
    }
    assert {text: read_cbor(bytes.fromhex(text)) for text in examples} == examples


def test_long_lists_of_numbers_are_decoded():
    numbers = [*range(30), 200, 300, 70_000, 2**40] * 5000
    items = bytearray()
    for number in numbers:
        code = next(i for i, bits in enumerate((8, 16, 32, 64)) if number < 1 << bits)
        items += bytes([number]) if number < 24 else bytes([24 + code]) + number.to_bytes(1 << code)
    size = len(numbers).to_bytes(4)
    assert read_cbor(b"\x9a" + size + items).tolist() == numbers
    floats = [0.5, 1.1] * 70_000  # of two sizes, and then of one
    mixed = b"".join(b"\xf9\x38\x00" if x == 0.5 else struct.pack(">Bd", 0xFB, x) for x in floats)
    alike = struct.pack(">Bf", 0xFA, 0.25) * len(floats)
    size = (2 * len(floats)).to_bytes(4)
    assert read_cbor(b"\x9a" + size + mixed + alike).tolist() == floats + [0.25] * len(floats)
    for rest in (b"", b"\x01" * 99, b"\x01" * 99 + b"\x60", b"\x01" * 99 + b"\x19"):
        with pytest.raises((IndexError, ValueError)):
            read_cbor(b"\x98\x64" + rest)


SPARSE = {
    "outer_dim": 3,
    "inner_dim": 2,
    "indptr": [0, 2, 3, 5],
    "outer_inds": [0, 1, 2],
    "inner_inds": [0, 1, 0, 0, 1],
    "data": [3.0, 1.0, 4.0, 9.0, 9.0],
}


def test_norms_of_columns_leave_the_bias_out():
    dense = {"Dense": {"dim": [3, 2], "data": [3.0, 1.0, 4.0, 0.0, 9.0, 9.0]}}
    assert column_norms(dense).tolist() == column_norms({"Sparse": SPARSE}).tolist() == [5, 1]


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("indptr", [0, 2, 3, 10**6]),
        ("indptr", [0, 3, 2, 5]),
        ("indptr", [1, 2, 3, 5]),
        ("indptr", []),
        ("outer_inds", [0, 1]),
        ("outer_inds", [0, 1, 3]),
        ("outer_dim", 10**6),
        ("inner_inds", [0, 1, 0, 0, 2]),
        ("inner_inds", [0, -1, 0, 0, 1]),
        ("inner_inds", [0]),
        ("inner_inds", [0.5] * 5),
        ("data", [1.0]),
        ("data", [float("nan")] * 5),
    ],
)
def test_indices_of_trees_are_checked(part, value):
    """The library aborts the process if one of them is out of range."""
    check_tree({"Leaf": {"weights": {"Sparse": SPARSE}, "labels": [0, 9]}}, features=2, labels=10)
    with pytest.raises(ValueError, match=r"NaN|index|rows|sizes"):
        check_tree({"Leaf": {"weights": {"Sparse": SPARSE | {part: value}}, "labels": [0]}}, features=2, labels=10)
    with pytest.raises(ValueError, match="index"):
        check_tree({"Leaf": {"weights": {"Sparse": SPARSE}, "labels": [10]}}, features=2, labels=10)


def test_a_label_of_a_tree_that_is_out_of_range_is_refused(fitted):
    state = fitted.get_extra_state()
    content = bytearray(state["tree0.cbor"].numpy().tobytes())
    content[content.rindex(b"labels") + len("labels") + 1] = LABELS  # the first of a list
    with raises(UserError, "omikuji", LABELS):
        Parabel(1, fitted.space, max_leaf=3).set_extra_state(
            state | {"tree0.cbor": torch.frombuffer(content, dtype=torch.uint8)}
        )


def slow_matrix(weights):
    """A decoded matrix, entry by entry, (features + 1, classifiers)."""
    ((kind, content),) = weights.items()
    if kind == "Dense":
        return np.array(content["data"]).reshape(content["dim"])
    matrix = np.zeros((content["outer_dim"], content["inner_dim"]))
    for place, row in enumerate(content["outer_inds"]):
        for at in range(*content["indptr"][place : place + 2]):
            matrix[row, content["inner_inds"][at]] = content["data"][at]
    return matrix


def test_weight_norms_are_those_of_the_classifiers():
    """Decoded weights predict as the library does: a leaf's probability is exp(-max(0, 1 - margin)^2)."""
    counts, targets = corpus(200)
    engine = Parabel(1, space_of(targets), max_leaf=100, trees=1)
    assert engine.weight_norms() is None
    engine.fit(TransitionContext(words=counts, targets=targets))
    (tree,) = (read_cbor(v.numpy().tobytes()) for name, v in engine.files.items() if name.endswith(".cbor"))
    ((labels, weights),) = leaves(tree)
    matrix, words = slow_matrix(weights), engine.tfidf.matrix(corpus(20, seed=1)[0])
    expected = np.zeros((20, LABELS))
    expected[:, labels] = np.exp(-(np.maximum(0, 1 - (words.toarray() @ matrix[:-1] + matrix[-1])) ** 2))
    ranking = engine.rank_rows(words, LABELS)
    for row in range(20):
        known = ranking.labels[row] >= 0
        assert np.allclose(ranking.scores[row][known], expected[row, ranking.labels[row][known]], atol=1e-4)
    norms = np.zeros(LABELS)
    norms[labels] = [np.linalg.norm(column[:-1]) for column in matrix.T]
    assert np.allclose(engine.weight_norms(), norms, atol=1e-5)
    assert norms.min() > 0.1
