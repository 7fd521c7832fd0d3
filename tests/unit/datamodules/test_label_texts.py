"""Label descriptions: files of texts and parents, and label queries initialized from them."""

import bz2
import gzip
import json
from copy import deepcopy

import pytest
import torch

from backbones import BiLSTM
from datamodules import Batch, LabelSpace, Reuters, Targets, TextFiles
from datamodules.prepare.label_texts import label_texts, parent_pairs, read_labels
from heads import LSAN, AttentionXML, Decoupled, PvaeAugmentor, TransitionContext
from tests.support.corpora import document, write_jsonl
from tests.support.errors import raises
from tests.support.vocabularies import save_tokenizer
from zoo.core.errors import UserError


def test_a_json_object_with_texts_and_parents(tmp_path):
    path = tmp_path / "labels.json.gz"
    entries = {
        "1102": {"label": "cheese", "alt_labels": [], "parents": []},
        "1107": {"label": "blue-veined cheese", "alt_labels": ["Stilton", "Roquefort"], "parents": ["1102", "9"]},
        "7": "a text alone",
        "8": {"parents": ["8"]},
    }
    path.write_bytes(gzip.compress(json.dumps(entries).encode()))
    assert label_texts(read_labels(path)) == {
        "1102": "cheese",
        "1107": "blue-veined cheese, Stilton, Roquefort; cheese",
        "7": "a text alone",
        "8": "",
    }
    assert parent_pairs(read_labels(path), ["1107", "7", "8", "1102", "unknown"]) == [0, 3]


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".jsonl.bz2"])
def test_rows_of_every_format(tmp_path, suffix):
    rows = [("a", "first letter", ""), ("b", "second letter", "a; c"), ("c", "", "")]
    if suffix.startswith(".jsonl"):
        as_json = [{"label": label, "text": text, "parents": parents} for label, text, parents in rows]
        content = "\n".join(map(json.dumps, as_json))
    else:
        separator = "\t" if suffix == ".tsv" else ","
        content = "\n".join(separator.join(row) for row in [("label", "text", "parents"), *rows])
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(bz2.compress(content.encode()) if suffix.endswith("bz2") else content.encode())
    assert label_texts(read_labels(path)) == {"a": "first letter", "b": "second letter; first letter", "c": ""}


@pytest.mark.parametrize(
    ("name", "content", "names"),
    [
        ("labels.json", "[1]", ["labels.json"]),
        ("labels.json", "{", ["JSON"]),
        ("labels.json", '{"a": 3}', ["'a'"]),
        ("labels.json", '{"a": {"parents": 3}}', ["alt_labels", "parents"]),
        ("labels.json", '{"a": {"text": 3}}', ["'a'"]),
        ("labels.jsonl", '{"label": "a"}\n{"text": "b"}', ["line 2", "label"]),
        ("labels.jsonl", '{"label": "a"}\n{', ["line 2", "JSON"]),
        ("labels.csv", "label,text\na,b\na,c", ["line 3", "'a'"]),
        ("labels.json", "[" * 100_000, ["JSON"]),
        ("labels.csv", "id,text\n1,b", ["'label'"]),
        ("labels.xml", "<a/>", [".json", ".jsonl"]),
    ],
)
def test_invalid_files_are_reported(tmp_path, name, content, names):
    path = tmp_path / name
    path.write_text(content)
    with raises(UserError, name, *names):
        label_texts(read_labels(path))


@pytest.fixture
def corpus(tmp_path):
    """Files of documents and of label texts."""
    rows = [document(str(i), ["1"] + ["2"] * (i % 2), f"grain and cocoa {i}") for i in range(40)]
    write_jsonl(tmp_path / "train.jsonl", rows)
    (tmp_path / "labels.json").write_text(json.dumps({"1": "cocoa and grain", "2": "grain", "3": "nobody has it"}))
    return tmp_path


def test_a_corpus_has_the_texts_of_its_labels(corpus, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", str(corpus))
    data = TextFiles(str(corpus / "train.jsonl"), label_texts="labels.json", cache_dir=str(corpus / "cache"))
    assert dict(zip(data.space.names, data.space.texts, strict=True)) == {"1": "cocoa and grain", "2": "grain"}
    batches = list(data.label_batches())
    assert [label for batch in batches for label in batch.rows.tolist()] == [0, 1]
    assert batches[0].mask.sum(1).tolist() == [3, 1]
    without = TextFiles(str(corpus / "train.jsonl"), cache_dir=str(corpus / "cache"))
    assert without.space.texts == []  # the same cache: texts are no part of it
    missing = TextFiles(str(corpus / "train.jsonl"), label_texts="none.json", cache_dir=str(corpus / "cache"))
    with raises(UserError, "none.json", "`label_texts`"):
        _ = missing.space


def test_named_corpora_find_them_in_their_folder(corpus):
    data = Reuters(root=str(corpus), cache_dir=str(corpus / "cache"))
    assert data.space.texts == ["cocoa and grain", "grain"]
    (corpus / "others.json").write_text('{"2": "other"}')
    given = Reuters(root=str(corpus), label_texts=str(corpus / "others.json"), cache_dir=str(corpus / "cache"))
    assert given.space.texts == ["", "other"]


def test_texts_of_unknown_words_are_skipped(corpus):
    data = TextFiles(str(corpus / "train.jsonl"), cache_dir=str(corpus / "cache"))
    data.space.texts = ["wholly unknown", "grain"]
    assert [batch.rows.tolist() for batch in data.label_batches()] == [[1]]


def test_texts_of_special_tokens_are_skipped(corpus):
    save_tokenizer(corpus / "tokenizer", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "grain", "cocoa", "and"], **ENDS)
    data = TextFiles(str(corpus / "train.jsonl"), tokenizer=str(corpus / "tokenizer"), cache_dir=str(corpus / "cache"))
    data.space.texts = ["grain", ""]
    assert [batch.rows.tolist() for batch in data.label_batches()] == [[0]]


SPACE = LabelSpace(["a", "b", "c", "d"], [9, 5, 3, 1], 20, vocab_size=30)


TEXTS = {0: [5, 6], 1: [5, 7, 8], 3: [9]}
ENDS = {"cls_token": "[CLS]", "sep_token": "[SEP]"}


@torch.no_grad()
def transition(backbone, texts=TEXTS):
    """A transition with one batch for the text of each label."""
    pairs = []
    for label, tokens in texts.items():
        ids = torch.tensor([tokens + [0] * (4 - len(tokens))])
        batch = Batch(ids, ids > 0, Targets.from_lists([[]]), torch.tensor([label]))
        pairs.append((backbone(batch), batch))
    return TransitionContext(labels=pairs, backbone=backbone)


@pytest.mark.parametrize(
    "make",
    [AttentionXML, LSAN, lambda dim, space: PvaeAugmentor(dim, space, head_count=None)],
    ids=["AttentionXML", "LSAN", "PvaeAugmentor"],
)
def test_queries_start_as_mean_states_of_texts(make):
    torch.manual_seed(0)
    backbone = BiLSTM(SPACE, embed_dim=8, hidden=6).eval()
    head, ctx = make(backbone.dim, SPACE), transition(backbone)
    before = head.queries().detach().clone()
    head.start_from_label_texts(ctx)
    after = head.queries().detach()
    means = {}
    for features, batch in ctx.label_features():
        means[int(batch.rows)] = features.tokens[0, : int(features.mask.sum())].mean(0)
    common = torch.stack(list(means.values())).mean(0)
    for label, mean in means.items():
        expected = (mean - common) / (mean - common).norm() * before[label].norm()
        torch.testing.assert_close(after[label], expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(after[2], before[2])  # it has no text


def test_parts_start_from_the_texts_of_their_own_labels():
    torch.manual_seed(0)
    backbone = BiLSTM(SPACE, embed_dim=8, hidden=6).eval()
    head = Decoupled(backbone.dim, SPACE, AttentionXML, AttentionXML, fraction=0.5)
    untouched, alone = deepcopy(head), deepcopy(head)
    texts = TEXTS | {2: [6, 7]}
    own = {"head": {0: texts[0], 1: texts[1]}, "tail": {0: texts[2], 1: texts[3]}}  # numbered from 0 in each part
    for name in own:
        part, before, expected = (getattr(each, name) for each in (head, untouched, alone))
        part.start_from_label_texts(transition(backbone, texts))
        expected.inner.start_from_label_texts(transition(backbone, own[name]))
        torch.testing.assert_close(part.inner.queries(), expected.inner.queries())
        assert not torch.equal(part.inner.queries(), before.inner.queries())


def test_heads_without_queries_are_rejected():
    head = PvaeAugmentor(12, SPACE, label_specific=False, head_count=3)
    with raises(UserError, "queries"):
        head.start_from_label_texts(transition(BiLSTM(SPACE, embed_dim=8, hidden=6)))


def test_parts_and_grown_spaces_keep_texts():
    space = LabelSpace(["a", "b", "c"], [9, 5, 3], 20, vocab_size=30, texts=["A", "B", "C"])
    assert space.part(1, 3).texts == ["B", "C"]
    assert space.grown({"d": 2}).texts == ["A", "B", "C", ""]
    assert SPACE.part(1, 3).texts == SPACE.grown({"e": 1}).texts == []


@pytest.mark.parametrize(("labels", "head"), [(5, 1), (10, 1), (11, 2), (40, 4)])
def test_the_most_frequent_tenth_is_head_by_default(labels, head):
    space = LabelSpace([str(i) for i in range(labels)], list(range(labels, 0, -1)), 100, vocab_size=30)
    assert int(PvaeAugmentor(12, space, head_count=None).is_head.sum()) == head
    grown = space.grown({"new": 1000})  # a label that came later is tail, and changes nothing
    assert int(PvaeAugmentor(12, grown, head_count=None).is_head.sum()) == head
