"""What a report shows of a model, against slow loops."""

from __future__ import annotations

import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from callbacks.predictions import label_table, prediction_table
from datamodules.batch import LabelSpace, Targets
from datamodules.prepare.vocabulary import Vocabulary, word_tokenizer
from zoo.analysis.collect_evidence import choose, correlations, readable
from zoo.analysis.evidence import Evidence, Example, Points
from zoo.core.run_folder import RunFolder

SPACE = LabelSpace(["a", "b", "c", "d"], [5, 3, 2, 1], num_documents=6, vocab_size=9, unseen=["u"], texts=["A"] * 4)


def test_correlations_are_those_of_columns():
    lists = [[0, 1], [0], [0, 1, 2], [0, 3], [1, 2], [0, 4]]
    chosen, found = correlations(Targets.from_lists(lists), SPACE)
    dense = np.array([[label in row for label in range(4)] for row in lists], dtype=float)
    assert chosen.tolist() == [0, 1, 2, 3]
    assert np.allclose(found, np.corrcoef(dense, rowvar=False), atol=1e-6)


def test_a_label_of_all_documents_or_none_correlates_with_nothing():
    space = LabelSpace(["a", "b", "c"], [3, 1, 0], num_documents=3, vocab_size=9)
    _, found = correlations(Targets.from_lists([[0], [0, 1], [0]]), space)
    assert found[0, 1] == found[1, 2] == 0
    assert np.isfinite(found).all()


def test_of_many_labels_frequent_ones_are_shown_closely():
    counts = list(range(5000, 0, -1))
    space = LabelSpace([str(i) for i in counts], counts, num_documents=9000, vocab_size=9)
    chosen, found = correlations(Targets.from_lists([[0, 4999], [1]]), space)
    assert len(chosen) <= 80
    assert chosen[0] == 0
    assert chosen[-1] == 4999
    assert (np.diff(chosen) > 0).all()
    assert found.shape == (len(chosen), len(chosen))


@pytest.mark.parametrize(
    ("truth", "found", "kind"),
    [
        ([0, 3], [3, 0, 1], "right"),
        ([0, 3], [0, 1, 2], "missed"),
        ([0, 3], [1, 0, 3], "wrong"),
        ([4], [0], None),  # nobody could have found a label that no training document has
        ([0, 4], [0], None),
        ([], [0], None),
        ([0], [], None),
    ],
)
def test_kinds_of_examples(truth, found, kind):
    chosen = list(choose([7], [truth], [found], np.full(8, 20), SPACE))
    assert chosen == ([(kind, 0)] if kind else [])


def test_examples_with_rare_labels_and_short_texts_go_first():
    truths = [[0], [1], [2], [3], [3], [2]]
    lengths = np.array([20, 20, 20, 20, 9999, 20])
    places = [place for _, place in choose(range(6), truths, truths, lengths, SPACE)]
    assert places == [3, 2, 5, 1]


def test_words_as_they_were_read():
    vocabulary = Vocabulary(word_tokenizer({"[PAD]": 0, "[UNK]": 1, "cocoa": 2, "prices": 3}), 9)
    assert readable(vocabulary, [2, 3, 1, 0, 0]) == ([" cocoa", " prices", " [UNK]"], [0, 1, 2])


def test_pieces_of_words_are_joined():
    tokenizer = Tokenizer(models.WordPiece({"[PAD]": 0, "[UNK]": 1, "co": 2, "##coa": 3, "rose": 4}, unk_token="[UNK]"))
    vocabulary = Vocabulary(tokenizer, 9)
    assert readable(vocabulary, [2, 3, 4])[0] == [" co", "coa", " rose"]


def test_tokens_of_bytes_are_decoded():
    tokenizer = Tokenizer(models.BPE({"<pad>": 0, "<unk>": 1, "Ġcaf": 2, "Ã©": 3, "Ġbar": 4}, [], unk_token="<unk>"))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(), decoders.ByteLevel()
    assert readable(Vocabulary(tokenizer, 9), [2, 3, 4])[0] == [" caf", "é", " bar"]


def test_it_is_read_as_it_was_kept(tmp_path):
    example = Example("id", "right", [" a", "b"], [0, 4], [0], [0.5], {0: [0.25, 0.75]})
    points = Points(np.ones((2, 3), np.float32), np.array([0, 1]), np.array([False, True]))
    kept = Evidence(np.arange(4.0), None, None, points, ("A1", "D-1"), np.eye(2), (example,))
    run = RunFolder(tmp_path)
    run.labels = pa.table({"label": list("abcde")})
    kept.save(run)
    read = Evidence.load(run)
    assert read.examples == kept.examples
    assert read.experts == kept.experts
    assert read.correlation is None
    assert np.array_equal(read.norms, kept.norms)
    assert np.array_equal(read.points.generated, points.generated)
    Evidence().save(RunFolder(tmp_path))
    assert Evidence.load(RunFolder(tmp_path)) == Evidence()
    assert Evidence.load(RunFolder(tmp_path / "nowhere")) is None


def test_tables_of_documents_and_labels():
    first = tuple(map(np.array, ([3, 1], [1, 0], [4], [2, 1], [0, 2, 1], [0.9, 0.2, 0.6])))
    second = tuple(map(np.array, ([0], [2], [0, 1], [0], [], [])))
    rows = prediction_table([first, second], ids=["d0", "d1", "d2", "d3"]).to_pylist()
    assert [row["id"] for row in rows] == ["d0", "d1", "d3"]
    assert [row["truth"] for row in rows] == [[0, 1], [], [4]]
    assert [row["labels"] for row in rows] == [[], [1], [0, 2]]
    assert rows[2]["scores"] == pytest.approx([0.9, 0.2])
    table = label_table(SPACE).to_pydict()
    assert table["label"] == ["a", "b", "c", "d", "u"]
    assert table["known"] == [True] * 4 + [False]
    assert table["text"] == ["A"] * 4 + [""]
    assert table["weight"] == pytest.approx(SPACE.inverse_propensity().tolist())
    json.dumps(table)


def test_lengths_of_transferred_weights_are_the_ensembles_mean():
    from heads import PrototypeTransfer

    torch.manual_seed(0)
    head = PrototypeTransfer(6, SPACE, hidden=3, tail_count=2, members=2, bias=True)
    with torch.no_grad():
        head.tail.normal_()
    expected = []
    for label in range(4):
        place = int(head.column[label])
        if place < len(head.head):
            expected.append(float(head.scale * head.head[place, :3].norm()))
        else:
            members = [float(m[place - len(head.head), :3].norm()) for m in head.tail]
            expected.append(float(head.scale) * sum(members) / 2)
    assert head.weight_norms().tolist() == pytest.approx(expected, rel=1e-5)
