"""What labels mean: files of texts and parents, and heads whose queries begin with them."""

from __future__ import annotations

import bz2
import gzip
import json

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from backbones import Backbone, BiLSTM, Features
from datamodules import Batch, LabelSpace, Reuters, Targets, TextFiles
from datamodules.errors import UserError
from datamodules.label_texts import read_label_texts
from heads import LSAN, AttentionXML, PvaeAugmentor


def test_an_object_with_an_entry_for_each_label(tmp_path):
    path = tmp_path / "labels.json.gz"
    entries = {
        "1102": {"label": "cheese", "alt_labels": [], "parents": []},
        "1107": {"label": "blue-veined cheese", "alt_labels": ["Stilton", "Roquefort"], "parents": ["1102", "9"]},
        "7": "a text alone",
        "8": {"parents": ["8"]},
    }
    path.write_bytes(gzip.compress(json.dumps(entries).encode()))
    assert read_label_texts(path) == {
        "1102": "cheese",
        "1107": "blue-veined cheese, Stilton, Roquefort; cheese",
        "7": "a text alone",
        "8": "",
    }


@pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".tsv", ".jsonl.bz2"])
def test_rows_say_the_same_in_every_format(tmp_path, suffix):
    rows = [("a", "first letter", ""), ("b", "second letter", "a; c"), ("c", "", "")]
    if suffix.startswith(".jsonl"):
        as_json = [{"label": label, "text": text, "parents": parents} for label, text, parents in rows]
        content = "\n".join(map(json.dumps, as_json))
    else:
        separator = "\t" if suffix == ".tsv" else ","
        content = "\n".join(separator.join(row) for row in [("label", "text", "parents"), *rows])
    path = tmp_path / f"labels{suffix}"
    path.write_bytes(bz2.compress(content.encode()) if suffix.endswith("bz2") else content.encode())
    assert read_label_texts(path) == {"a": "first letter", "b": "second letter; first letter", "c": ""}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("labels.json", "[1]", "expected one object with an entry for each label"),
        ("labels.json", "{", "broken JSON"),
        ("labels.json", '{"a": 3}', "'a': expected a text, or an object"),
        ("labels.json", '{"a": {"parents": 3}}', "alt_labels and parents must be lists"),
        ("labels.json", '{"a": {"text": 3}}', "must be strings"),
        ("labels.jsonl", '{"label": "a"}\n{"text": "b"}', "line 2: no label"),
        ("labels.jsonl", '{"text": "b"}', "no column 'label' among 'text'"),
        ("labels.jsonl", '{"label": "a"}\n{', "line 2: broken JSON"),
        ("labels.csv", "label,text\na,b\na,c", "line 3: 'a' is there twice"),
        ("labels.json", '{"a": "\\ud800"}', "broken JSON"),
        ("labels.json", "[" * 100_000, "broken JSON"),
        ("labels.csv", "id,text\n1,b", "no column 'label'"),
        ("labels.xml", "<a/>", "are read from .json, .jsonl"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(UserError, match=message) as error:
        read_label_texts(path)
    assert "\n" not in str(error.value)


@pytest.fixture
def corpus(tmp_path):
    """Files of documents and of label texts."""
    rows = [{"text": f"grain and cocoa {i}", "labels": ["1"] + ["2"] * (i % 2)} for i in range(40)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "labels.json").write_text(json.dumps({"1": "cocoa and grain", "2": "grain", "3": "nobody has it"}))
    return tmp_path


def test_a_corpus_carries_the_texts_of_its_labels(corpus, monkeypatch):
    monkeypatch.setenv("ZOO_DATA", str(corpus))
    data = TextFiles(str(corpus / "train.jsonl"), label_texts="labels.json", cache_dir=str(corpus / "cache"))
    assert dict(zip(data.space.names, data.space.texts, strict=True)) == {"1": "cocoa and grain", "2": "grain"}
    batches = list(data.label_batches())
    assert [label for batch in batches for label in batch.rows.tolist()] == [0, 1]
    assert batches[0].mask.sum(1).tolist() == [3, 1]
    without = TextFiles(str(corpus / "train.jsonl"), cache_dir=str(corpus / "cache"))
    assert without.space.texts == []  # the same cache: texts are no part of it
    missing = TextFiles(str(corpus / "train.jsonl"), label_texts="none.json", cache_dir=str(corpus / "cache"))
    with pytest.raises(UserError, match=r"no such file: none.json \(--data.label_texts\)"):
        _ = missing.space


def test_a_corpus_with_a_name_has_them_in_its_folder(corpus):
    data = Reuters(root=str(corpus), cache_dir=str(corpus / "cache"))
    assert data.space.texts == ["cocoa and grain", "grain"]
    (corpus / "others.json").write_text('{"2": "other"}')
    given = Reuters(root=str(corpus), label_texts=str(corpus / "others.json"), cache_dir=str(corpus / "cache"))
    assert given.space.texts == ["", "other"]


def test_labels_without_known_words_have_no_text(corpus):
    data = TextFiles(str(corpus / "train.jsonl"), cache_dir=str(corpus / "cache"))
    data.space.texts = ["wholly unknown", "grain"]
    assert [batch.rows.tolist() for batch in data.label_batches()] == [[1]]


def test_special_tokens_are_no_words(corpus):
    words = {token: i for i, token in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "grain", "cocoa", "and"])}
    tokenizer = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    ends = [("[CLS]", 2), ("[SEP]", 3)]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(corpus / "tokenizer")
    data = TextFiles(str(corpus / "train.jsonl"), tokenizer=str(corpus / "tokenizer"), cache_dir=str(corpus / "cache"))
    data.space.texts = ["grain", ""]
    assert [batch.rows.tolist() for batch in data.label_batches()] == [[0]]


SPACE = LabelSpace(["a", "b", "c", "d"], [9, 5, 3, 1], 20, vocab_size=30)


class Context:
    """Texts of labels 0, 1 and 3, each as its own process would have it."""

    seed, epoch, first = 0, 0, True

    def __init__(self, backbone: Backbone) -> None:
        self.backbone = backbone
        self.tokens = {0: [5, 6], 1: [5, 7, 8], 3: [9]}

    def label_features(self):
        for label, tokens in self.tokens.items():
            ids = torch.tensor([tokens + [0] * (4 - len(tokens))])
            batch = Batch(ids, ids > 0, Targets.from_lists([[]]), torch.tensor([label]))
            with torch.no_grad():
                yield self.backbone(batch), batch

    def sum(self, value):
        return value.clone()


@pytest.mark.parametrize(
    "make",
    [AttentionXML, LSAN, lambda dim, space: PvaeAugmentor(dim, space, head_count=None)],
    ids=["AttentionXML", "LSAN", "PvaeAugmentor"],
)
def test_queries_begin_as_mean_states_of_texts(make):
    torch.manual_seed(0)
    backbone = BiLSTM(SPACE, embed_dim=8, hidden=6).eval()
    head, ctx = make(backbone.dim, SPACE), Context(backbone)
    before = head.queries().detach().clone()
    head.start_from_label_texts(ctx)
    after = head.queries().detach()
    means = {}
    for features, batch in ctx.label_features():
        states: Features = features
        length = int(states.mask.sum())
        means[int(batch.rows)] = states.tokens[0, :length].mean(0)
    common = torch.stack(list(means.values())).mean(0)
    for label, mean in means.items():
        expected = (mean - common) / (mean - common).norm() * before[label].norm()
        torch.testing.assert_close(after[label], expected, rtol=1e-4, atol=1e-6)
    assert torch.equal(after[2], before[2])  # it has no text


def test_texts_that_do_not_differ_change_nothing():
    torch.manual_seed(0)
    backbone = BiLSTM(SPACE, embed_dim=8, hidden=6).eval()
    head, ctx = AttentionXML(backbone.dim, SPACE), Context(backbone)
    ctx.tokens = {0: [5], 1: [5]}
    before = head.queries().detach().clone()
    head.start_from_label_texts(ctx)
    assert torch.equal(head.queries(), before)


def test_a_head_without_queries_says_so():
    head = PvaeAugmentor(12, SPACE, label_specific=False, head_count=3)
    with pytest.raises(UserError, match="has no queries that could begin as texts"):
        head.start_from_label_texts(Context(BiLSTM(SPACE, embed_dim=8, hidden=6)))


def test_parts_and_grown_spaces_keep_the_texts_of_their_labels():
    space = LabelSpace(["a", "b", "c"], [9, 5, 3], 20, vocab_size=30, texts=["A", "B", "C"])
    assert space.part(1, 3).texts == ["B", "C"]
    assert space.grown({"d": 2}).texts == ["A", "B", "C", ""]
    assert SPACE.part(1, 3).texts == SPACE.grown({"e": 1}).texts == []


@pytest.mark.parametrize(("labels", "head"), [(5, 1), (10, 1), (11, 2), (40, 4)])
def test_the_most_frequent_tenth_is_head_where_no_count_is_given(labels, head):
    space = LabelSpace([str(i) for i in range(labels)], list(range(labels, 0, -1)), 100, vocab_size=30)
    assert int(PvaeAugmentor(12, space, head_count=None).is_head.sum()) == head
    grown = space.grown({"new": 1000})  # a label that came later is tail, and changes nothing
    assert int(PvaeAugmentor(12, grown, head_count=None).is_head.sum()) == head
