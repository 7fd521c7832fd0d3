"""What is counted is what is encoded; any fast tokenizer serves as well."""

from __future__ import annotations

import socket
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel, WordPiece
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from datamodules.errors import UserError
from datamodules.vocab import WORD, Vocabulary, load_pretrained
from tests.unit.vocabularies import build_words

TEXTS = ["The cat sat", "the dog", "a cat, a DOG: the end"]
FAMILIAR = unicodedata.ucd_3_2_0


def spelled(vocabulary, text):
    """The text as the vocabulary sees it."""
    words = {number: word for word, number in vocabulary.words().items()}
    return [words[i] for i in vocabulary.encode([text])[0]]


def test_words_are_ranked_by_documents_and_then_by_alphabet():
    vocabulary = build_words(TEXTS, 100, 50)
    ranked = sorted(vocabulary.words(), key=vocabulary.words().__getitem__)
    assert ranked == ["[PAD]", "[UNK]", "the", "cat", "dog", "a", "end", "sat"]
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.size) == (0, 1, 8)


def test_a_word_counts_once_in_a_document():
    vocabulary = build_words(["b b b b", "a", "a"], 3, 50)
    assert spelled(vocabulary, "a b") == ["a", "[UNK]"]


def test_max_words_bounds_the_vocabulary_special_tokens_included():
    vocabulary = build_words(TEXTS, 4, 50)
    assert vocabulary.size == 4
    assert spelled(vocabulary, "the cat dog") == ["the", "cat", "[UNK]"]


def test_case_punctuation_and_underscores_do_not_matter():
    vocabulary = build_words(["snake case 42 x"], 100, 50)
    assert spelled(vocabulary, "_Snake_CASE... (42)\t-x-") == ["snake", "case", "42", "x"]
    assert spelled(vocabulary, "\uff53nake") == ["snake"]  # full width


def test_special_tokens_in_a_text_are_words():
    vocabulary = build_words(["pad unk"], 100, 50)
    assert spelled(vocabulary, "[PAD] [UNK]") == ["pad", "unk"]


@pytest.mark.parametrize("text", ["", "  \n", "?!_"])
def test_a_text_without_words_is_one_unknown_word(text):
    assert build_words(TEXTS, 100, 50).encode([text, "cat"]) == [[1], [3]]


def test_long_texts_keep_their_beginning():
    vocabulary = build_words(TEXTS, 100, 2)
    assert spelled(vocabulary, "dog cat the end") == ["dog", "cat"]


def test_text_form_gives_equal_encodings():
    one = build_words(TEXTS, 100, 3)
    other = Vocabulary.from_text(one.text, 3)
    texts = [*TEXTS, "", "unheard of", "The the the the"]
    assert one.encode(texts) == other.encode(texts)
    assert (one.size, one.pad_id, one.unk_id, one.words()) == (other.size, other.pad_id, other.unk_id, other.words())


def test_text_form_takes_another_length():
    longer = Vocabulary.from_text(build_words(TEXTS, 100, 1).text, 3)
    assert spelled(longer, "the cat sat dog") == ["the", "cat", "sat"]


# Python and the tokenizer differ in two ways, both left out here:
# - Python's lower() writes a capital sigma at the end of a word as the final one, the tokenizer never does.
# - They know different versions of Unicode: characters younger than version 3.2 may be letters to one of them only.
CHARACTERS = st.characters(exclude_categories=("Cs", "Cn", "Co"), exclude_characters="\u03a3\u03f9").filter(
    lambda c: FAMILIAR.category(c) != "Cn" and "Σ" not in unicodedata.normalize("NFKC", c)
)


@given(text=st.text(CHARACTERS, max_size=60))
@settings(deadline=None, max_examples=150)
def test_the_tokenizer_finds_the_words_that_were_counted(text):
    counted = WORD.findall(unicodedata.normalize("NFKC", text).lower())
    vocabulary = build_words([text], 1000, 1000)
    assert spelled(vocabulary, text) == (counted or ["[UNK]"])
    assert vocabulary.size == 2 + len(set(counted))


def test_every_single_letter_and_digit_is_encoded():
    letters = [c for c in map(chr, range(0x110000)) if FAMILIAR.category(c)[0] in "LN"]
    letters = [c for c in letters if "Σ" not in unicodedata.normalize("NFKC", c)]
    assert len(letters) > 90_000
    text = "\n".join(letters)
    vocabulary = build_words([text], 10**6, 10**6)
    assert vocabulary.unk_id not in vocabulary.encode([text])[0]


# --- pretrained tokenizers


@pytest.fixture(scope="module")
def bert_like(tmp_path_factory):
    from transformers import PreTrainedTokenizerFast

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "##s"]
    tokenizer = Tokenizer(WordPiece({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    names = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    folder = tmp_path_factory.mktemp("bert")
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names).save_pretrained(folder)
    return str(folder)


@pytest.fixture
def offline(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # read from the environment at import


def test_pretrained_tokenizer_from_a_folder(bert_like):
    vocabulary = load_pretrained(bert_like, 10)
    assert spelled(vocabulary, "the cats dog") == ["[CLS]", "the", "cat", "##s", "[UNK]", "[SEP]"]
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.size) == (0, 1, 8)


def test_truncation_keeps_the_end_token(bert_like):
    vocabulary = load_pretrained(bert_like, 4)
    assert spelled(vocabulary, "the cat sat the cat") == ["[CLS]", "the", "cat", "[SEP]"]
    again = Vocabulary.from_text(vocabulary.text, 4)
    assert spelled(again, "the cat sat the cat") == ["[CLS]", "the", "cat", "[SEP]"]


def of_style(folder, words, pad, template, **names):
    """A word-level tokenizer with the special tokens of a family, as the hub has it."""
    from transformers import PreTrainedTokenizerFast

    ids = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(WordLevel(ids, unk_token=names["unk_token"]))
    tokenizer.pre_tokenizer = Whitespace()
    special = [(word, ids[word]) for word in template.replace(":2", "").split() if word != "$A"]
    tokenizer.post_processor = TemplateProcessing(single=template, special_tokens=special)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=pad, **names).save_pretrained(folder)
    return str(folder)


SENTENCE = ["the", "cat", "sat"]
STYLES = {
    "bert": (["[PAD]", "[UNK]", "[CLS]", "[SEP]", *SENTENCE], "[PAD]", "[CLS] $A [SEP]", {"unk_token": "[UNK]"}),
    "roberta": (["<s>", "<pad>", "</s>", "<unk>", *SENTENCE], "<pad>", "<s> $A </s>", {"unk_token": "<unk>"}),
    "xlnet": (
        ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", *SENTENCE],
        "<pad>",
        "$A <sep> <cls>:2",
        {"unk_token": "<unk>", "padding_side": "left"},
    ),
    "deberta": (["[PAD]", "[CLS]", "[SEP]", "[UNK]", *SENTENCE], "[PAD]", "[CLS] $A [SEP]", {"unk_token": "[UNK]"}),
    # has the padding token of the tokenizer that its own came from as well
    "modernbert": (
        ["<|padding|>", *SENTENCE, "[UNK]", "[CLS]", "[SEP]", "[PAD]"],
        "[PAD]",
        "[CLS] $A [SEP]",
        {"unk_token": "[UNK]"},
    ),
    "of nobody": (["<unk>", "a", "<pad>", "[nil]", *SENTENCE], "[nil]", "$A", {"unk_token": "<unk>"}),
}


@pytest.mark.parametrize("style", STYLES)
def test_truncation_and_padding_of_the_families(tmp_path, style):
    words, pad, template, names = STYLES[style]
    vocabulary = load_pretrained(of_style(tmp_path, words, pad, template, **names), 4)
    for one in (vocabulary, Vocabulary.from_text(vocabulary.text, 4)):
        room = 5 - len(template.split())
        expected = template.replace(":2", "").replace("$A", " ".join(["the", "cat", "sat", "the"][:room]))
        assert spelled(one, "the cat sat the cat sat") == expected.split()
        assert one.pad_id == words.index(pad)
        assert one.unk_id == words.index(names["unk_token"])
        assert [len(ids) for ids in one.encode(["the", "the cat"])] == [5 - room, 6 - room]  # no padding of its own


@pytest.mark.parametrize("missing", [False, True])
def test_a_folder_with_an_encoder_alone_has_no_tokenizer(tmp_path, missing):
    if not missing:  # of this the library makes a tokenizer without words
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(UserError, match="no tokenizer") as caught:
        load_pretrained(str(tmp_path), 10)
    assert missing or "it has no files of a tokenizer" in str(caught.value)


def test_a_folder_is_read_without_a_look_at_the_net(bert_like, monkeypatch):
    def fail(*_, **__):
        raise AssertionError("looked at the net")

    monkeypatch.setattr(socket, "getaddrinfo", fail)
    monkeypatch.setattr(socket.socket, "connect", fail)
    assert load_pretrained(bert_like, 10).size == 8


def test_padding_that_a_tokenizer_file_asks_for_is_left_out():
    tokenizer = Tokenizer.from_str(build_words(TEXTS, 100, 50).text)
    tokenizer.enable_padding(length=8)
    assert Vocabulary.from_text(tokenizer.to_str(), 50).encode(["the cat"]) == [[2, 3]]


def test_texts_of_a_batch_are_not_padded(bert_like):
    assert [len(ids) for ids in load_pretrained(bert_like, 10).encode(["", "the", "the cat"])] == [2, 3, 4]


def test_no_room_for_the_special_tokens_is_a_mistake_of_the_user(bert_like):
    with pytest.raises(UserError, match="max_length"):
        load_pretrained(bert_like, 1).encode(["the cat sat"])


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["{folder}/none", "nobody/nothing-of-this-name"])
def test_a_missing_tokenizer_is_told_in_one_line(tmp_path, name):
    name = name.format(folder=tmp_path)
    with pytest.raises(UserError, match="no tokenizer") as caught:
        load_pretrained(name, 10)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("content", [None, "{", '{"added_tokens": [], "model": {"type": "New"}}'])
def test_a_folder_with_a_broken_tokenizer_is_told_in_one_line(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with pytest.raises(UserError) as caught:
        load_pretrained(str(tmp_path), 10)
    assert str(tmp_path) in str(caught.value)
    assert "\n" not in str(caught.value)
