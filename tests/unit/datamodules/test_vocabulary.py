"""Vocabularies: learned words, sparse features and pretrained tokenizers."""

import unicodedata

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordPiece

from datamodules.prepare.tokens import WordTokenizer
from datamodules.prepare.vocabulary import WORD, FeatureVocabulary, Vocabulary, load_pretrained
from tests.support.errors import raises
from tests.support.vocabularies import build_features, build_words, save_tokenizer
from zoo.core.errors import UserError

TEXTS = ["The cat sat", "the dog", "a cat, a DOG: the end"]
FAMILIAR = unicodedata.ucd_3_2_0


def spelled(vocabulary, text):
    """The text as the vocabulary sees it."""
    words = {number: word for word, number in vocabulary.words().items()}
    return [words[i] for i in vocabulary.encode([text])[0]]


def test_words_are_ranked_by_documents_and_alphabet():
    vocabulary = build_words(TEXTS, 100, 50)
    ranked = sorted(vocabulary.words(), key=vocabulary.words().__getitem__)
    assert ranked == ["[PAD]", "[UNK]", "the", "cat", "dog", "a", "end", "sat"]
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.size) == (0, 1, 8)


def test_words_count_once_in_a_document():
    vocabulary = build_words(["b b b b", "a", "a"], 3, 50)
    assert spelled(vocabulary, "a b") == ["a", "[UNK]"]


def test_max_words_includes_special_tokens():
    vocabulary = build_words(TEXTS, 4, 50)
    assert vocabulary.size == 4
    assert spelled(vocabulary, "the cat dog") == ["the", "cat", "[UNK]"]


def test_case_punctuation_and_underscores_do_not_matter():
    vocabulary = build_words(["snake case 42 x"], 100, 50)
    assert spelled(vocabulary, "_Snake_CASE... (42)\t-x-") == ["snake", "case", "42", "x"]
    assert spelled(vocabulary, "\uff53nake") == ["snake"]  # full width


@pytest.mark.parametrize("text", ["", "  \n", "?!_"])
def test_a_text_without_words_is_one_unknown_word(text):
    assert build_words(TEXTS, 100, 50).encode([text, "cat"]) == [[1], [3]]


def test_saved_vocabularies_encode_equally():
    one = build_words(TEXTS, 100, 3)
    other = Vocabulary.from_text(one.text, 3)
    assert spelled(Vocabulary.from_text(one.text, 2), "the cat sat") == ["the", "cat"]
    texts = [*TEXTS, "", "unheard of", "The the the the"]
    assert one.encode(texts) == other.encode(texts)
    assert one.encode_with_values(texts) == (one.encode(texts), None)
    assert (one.size, one.pad_id, one.unk_id, one.words()) == (other.size, other.pad_id, other.unk_id, other.words())


# Python and the tokenizer differ in two ways, both left out here:
# - Python's lower() writes a capital sigma at the end of a word as the final one, the tokenizer never does.
# - They know different versions of Unicode: characters younger than version 3.2 may be letters to one of them only.
CHARACTERS = st.characters(exclude_categories=("Cs", "Cn", "Co"), exclude_characters="\u03a3\u03f9").filter(
    lambda c: FAMILIAR.category(c) != "Cn" and "Σ" not in unicodedata.normalize("NFKC", c)
)


@given(text=st.text(CHARACTERS, max_size=60))
@settings(deadline=None, max_examples=150)
def test_the_tokenizer_finds_the_counted_words(text):
    counted = WORD.findall(unicodedata.normalize("NFKC", text).lower())
    vocabulary = build_words([text], 1000, 1000)
    assert spelled(vocabulary, text) == (counted or ["[UNK]"])
    assert vocabulary.size == 2 + len(set(counted))


def test_every_letter_and_digit_is_encoded():
    letters = [c for c in map(chr, range(0x110000)) if FAMILIAR.category(c)[0] in "LN"]
    letters = [c for c in letters if "Σ" not in unicodedata.normalize("NFKC", c)]
    assert len(letters) > 90_000
    text = "\n".join(letters)
    vocabulary = build_words([text], 10**6, 10**6)
    assert vocabulary.unk_id not in vocabulary.encode([text])[0]


@pytest.fixture(scope="module")
def bert_like(tmp_path_factory):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "the", "cat", "sat", "##s"]
    return save_tokenizer(tmp_path_factory.mktemp("bert"), words, model=WordPiece)


@pytest.fixture
def offline(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # read from the environment at import


def test_pretrained_tokenizer_from_a_folder(bert_like):
    vocabulary = load_pretrained(bert_like, 10)
    assert spelled(vocabulary, "the cats dog") == ["[CLS]", "the", "cat", "##s", "[UNK]", "[SEP]"]
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.size) == (0, 1, 8)


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
    vocabulary = load_pretrained(save_tokenizer(tmp_path, words, pad, template, **names), 4)
    for one in (vocabulary, Vocabulary.from_text(vocabulary.text, 4)):
        room = 5 - len(template.split())
        expected = template.replace(":2", "").replace("$A", " ".join(["the", "cat", "sat", "the"][:room]))
        assert spelled(one, "the cat sat the cat sat") == expected.split()
        assert one.pad_id == words.index(pad)
        assert one.unk_id == words.index(names["unk_token"])
        assert [len(ids) for ids in one.encode(["the", "the cat"])] == [5 - room, 6 - room]  # no padding of its own


@pytest.mark.parametrize("missing", [False, True])
def test_folders_without_a_tokenizer_are_rejected(tmp_path, missing):
    if not missing:  # of this the library makes a tokenizer without words
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with raises(UserError, tmp_path):
        load_pretrained(str(tmp_path), 10)


def test_padding_of_a_tokenizer_file_is_ignored():
    tokenizer = Tokenizer.from_str(build_words(TEXTS, 100, 50).text)
    tokenizer.enable_padding(length=8)
    assert Vocabulary.from_text(tokenizer.to_str(), 50).encode(["the cat"]) == [[2, 3]]


def test_max_length_must_fit_the_special_tokens(bert_like):
    with raises(UserError, "max_length"):
        load_pretrained(bert_like, 1).encode(["the cat sat"])


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("name", ["{folder}/none", "nobody/nothing-of-this-name"])
def test_missing_tokenizers_are_reported(tmp_path, name):
    name = name.format(folder=tmp_path)
    with raises(UserError, name):
        load_pretrained(name, 10)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("content", [None, "{", '{"added_tokens": [], "model": {"type": "New"}}'])
def test_broken_tokenizers_are_reported(tmp_path, content):
    if content is not None:
        (tmp_path / "tokenizer.json").write_text(content)
        (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    with raises(UserError, tmp_path):
        load_pretrained(str(tmp_path), 10)


FEATURES = ["a:1 b:0.5", "b:2 c:1e-2 d:-3", "b c:0"]


def test_features_are_ranked_by_documents_and_name():
    vocabulary = build_features(FEATURES, 100, 50)
    ranked = sorted(vocabulary.words(), key=vocabulary.words().__getitem__)
    assert ranked == ["[PAD]", "[UNK]", "[VALUES]", "b", "a", "c", "d"]
    assert (vocabulary.pad_id, vocabulary.unk_id, vocabulary.size) == (0, 1, 7)
    assert build_features(FEATURES, 5, 50).size == 5


def test_feature_values_default_to_1():
    ids, values = build_features(FEATURES, 100, 50).encode_with_values(["b:2 a d:-0.5", "  c:3\t"])
    assert ids == [[3, 4, 6], [5]]
    assert values == [[2.0, 1.0, -0.5], [3.0]]


@pytest.mark.parametrize("text", ["", " ", "unheard:3 of", "b:0 a:0.0", "[UNK]:1 [PAD]:1 [VALUES]"])
def test_documents_without_known_features(text):
    assert build_features(FEATURES, 100, 50).encode_with_values([text]) == ([[1]], [[0.0]])


@pytest.mark.parametrize("text", ["a:x", "a:", ":1", "a:nan", "b:1 a:inf", "a:b:c"])
def test_invalid_feature_values_are_rejected(text):
    with raises(UserError, text.split()[-1]):
        build_features(FEATURES, 100, 50).encode([text])


def test_saved_feature_vocabularies_encode_equally():
    one = build_features(FEATURES, 100, 1)
    other = Vocabulary.from_text(one.text, 1)
    texts = [*FEATURES, "", "new:1"]
    assert isinstance(other, FeatureVocabulary)
    assert other.has_values
    assert one.encode_with_values(texts) == other.encode_with_values(texts)
    assert (other.text, other.size, other.words()) == (one.text, one.size, one.words())


def test_features_are_not_truncated():
    many = " ".join(f"n{i}:1" for i in range(3000))
    assert len(build_features([many], 10_000, 1).encode([many])[0]) == 3000


def test_windows_have_special_tokens_of_their_own_and_a_maximum_number(tmp_path):
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "c", "d", "e", "f", "g"]
    folder = save_tokenizer(tmp_path, words)
    several = load_pretrained(folder, 4, windows=3)
    for one in (several, Vocabulary.from_text(several.text, 4, 3)):
        texts = ["a b c d e", "a b", "a b c d e f g a", ""]
        assert one.encode(texts) == [
            [2, 4, 5, 3, 2, 6, 7, 3, 2, 8, 3],
            [2, 4, 5, 3],
            [2, 4, 5, 3, 2, 6, 7, 3, 2, 8, 9, 3],
            [2, 3],
        ]
        assert (one.window, load_pretrained(folder, 4).window) == (4, 0)


def test_windows_of_words_are_the_first_words():
    reading = WordTokenizer(100, 2, windows=3)
    chunk = reading.tokenize(["a b c d e f g", "a"], np.ones(2, dtype=bool))
    assert reading.index(chunk).ids.sizes.tolist() == [6, 1]
    vocabulary = reading.vocabulary()
    assert spelled(vocabulary, "a b c d e f g") == list("abcdef")
