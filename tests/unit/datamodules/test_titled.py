"""Corpora with label texts in the format of the Extreme Classification Repository, and scored unseen labels."""

import gzip
import json

import pytest

from datamodules import LfAmazonTitles131K, LfWikipedia500K, TextFiles
from tests.support.errors import raises
from zoo.core.errors import UserError

TRAIN = [
    {"uid": "B0", "title": "wooden chair", "content": "", "target_ind": [0, 2], "target_rel": [1.0, 1.0]},
    {"uid": "B1", "title": "oak table", "content": "a long text", "target_ind": [1], "target_rel": [1.0]},
    {"uid": "B2", "title": "green lamp", "target_ind": [2]},
    {"uid": "B3", "title": "red lamp, chair", "target_ind": [2, 0]},
]
TEST = [{"uid": "B4", "title": "oak chair", "content": "", "target_ind": [0, 3], "target_rel": [1.0, 1.0]}]
LABELS = [{"title": "chair"}, {"title": "table", "content": "made of wood"}, {"title": "lamp"}, {"title": "oak shelf"}]


@pytest.fixture
def folder(tmp_path):
    for name, rows in {"trn": TRAIN, "tst": TEST, "lbl": LABELS}.items():
        (tmp_path / f"{name}.json.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    return tmp_path


@pytest.mark.parametrize("kind", [LfAmazonTitles131K, LfWikipedia500K])
def test_documents_and_label_texts(kind, folder, tmp_path):
    data = kind(root=str(folder), unseen_labels="score", val_fraction=0.01, cache_dir=str(tmp_path / "cache"))
    space, rows = data.space, data.prepared.rows("train")
    texts = dict(zip(space.labels, [*space.texts, *space.unseen_texts], strict=True))
    assert texts == {"0": "chair", "1": "table\nmade of wood", "2": "lamp", "3": "oak shelf"}
    assert space.unseen == ["3"]
    words = data.prepared.vocabulary.tokenizer
    found = {id: [words.id_to_token(i) for i in ids] for id, ids in zip(rows.ids(), rows.tokens(), strict=True)}
    assert found["B1"] == ["oak", "table", "a", "long", "text"]
    assert found["B2"] == ["green", "lamp"]
    assert data.targets("test").indices.tolist() == sorted([space.labels.index("0"), space.labels.index("3")])
    known = {label for batch in data.label_batches() for label in batch.rows.tolist()}
    every = {label for batch in data.label_batches(unseen=True) for label in batch.rows.tolist()}
    assert known == set(range(space.num_labels))
    assert every - known == {space.labels.index("3")}


@pytest.mark.parametrize("line", ["[]", '{"title": "a"}', '{"target_ind": [-1]}', '{"target_ind": ["1"]}', "{"])
def test_broken_rows_end_in_one_line(folder, tmp_path, line):
    (folder / "trn.json.gz").write_bytes(gzip.compress(f"{json.dumps(TRAIN[0])}\n{line}".encode()))
    with raises(UserError, "trn.json.gz"):
        LfAmazonTitles131K(root=str(folder), cache_dir=str(tmp_path / "cache")).space  # noqa: B018


def test_a_broken_label_file_ends_in_one_line(folder, tmp_path):
    (folder / "lbl.json.gz").write_bytes(gzip.compress(b'{"title": "a"}\n[1]'))
    with raises(UserError, "line 2"):
        LfAmazonTitles131K(root=str(folder), val_fraction=0.01, cache_dir=str(tmp_path / "cache")).space  # noqa: B018


def test_unseen_labels_are_scored_by_their_names_or_count_as_misses(tmp_path):
    for split, rows in {"train": [("a", "x"), ("b", "y")], "val": [("a", "x")], "test": [("a b", "z")]}.items():
        lines = (json.dumps({"text": text, "labels": [label]}) for text, label in rows)
        (tmp_path / f"{split}.jsonl").write_text("\n".join(lines))
    files = {split: str(tmp_path / f"{split}.jsonl") for split in ("train", "val", "test")}
    spaces = {
        choice: TextFiles(**files, unseen_labels=choice, cache_dir=str(tmp_path / "cache")).space
        for choice in ("score", "miss")
    }
    assert (spaces["score"].unseen_texts, spaces["score"].num_scored) == (["z"], 3)
    assert (spaces["miss"].unseen_texts, spaces["miss"].num_scored) == ([], 2)
    assert spaces["score"].with_unseen().counts == [1, 1, 0]
    grown = spaces["score"].grown({"z": 0, "new": 2}, {"new": "a text"})
    assert (grown.names[-2:], grown.unseen, grown.unseen_texts) == (["z", "new"], [], [])
    with pytest.raises(UserError, match="unseen_labels=some"):
        TextFiles(**files, unseen_labels="some")
