"""The Python API: what it refuses, and what it leaves as it was."""

import copy
import pickle
from concurrent.futures import ThreadPoolExecutor
from itertools import count

import numpy as np
import pytest
import torch

import zoo
from backbones import BiLSTM
from datamodules.prepare.vocabulary import PAD, UNK, Vocabulary, word_tokenizer
from heads import PLT, Linear
from tests.support.documents import label_space
from tests.support.errors import raises
from zoo.training.ranking_model import RankingModel

WORDS = {PAD: 0, UNK: 1, "cod": 2, "quota": 3, "levy": 4, "ban": 5}
CONFIG = "model: {backbone: {class_path: backbones.BiLSTM, init_args: {embed_dim: 4, hidden: 4}}, head: heads.Linear}"
TEXTS = [f"{'cod ' * (i % 7)}{'quota levy ' * (i % 3)}ban" for i in range(40)]


def make(head=Linear, **settings):
    torch.manual_seed(0)
    space = label_space([9, 7, 5, 3, 2], vocab_size=len(WORDS))
    module = RankingModel(space, lambda space: BiLSTM(space, 4, 4), lambda dim, space: head(dim, space, **settings))
    module.vocabulary, module.config_text = Vocabulary(word_tokenizer(WORDS), 50), CONFIG
    return zoo.Tagger(module, batch_size=4)


@pytest.fixture
def tagger():
    return make()


@pytest.mark.parametrize(
    ("given", "error", "parts"),
    [
        ({"texts": "text"}, TypeError, ["texts", "str"]),
        ({"texts": b"text"}, TypeError, ["texts", "bytes"]),
        ({"texts": 5}, TypeError, ["texts", "int"]),
        ({"texts": None}, TypeError, ["texts", "NoneType"]),
        ({"texts": {"a": "text"}}, TypeError, ["texts", "dict"]),
        ({"texts": ["a", None]}, TypeError, ["text 2", "NoneType"]),
        ({"texts": [b"x"]}, TypeError, ["text 1", "bytes"]),
        ({"texts": ["a"] * 99 + [1.5]}, TypeError, ["text 100", "float"]),  # in the second window
        ({"k": "5"}, TypeError, ["k='5'", "str"]),
        ({"k": True}, TypeError, ["k=True", "bool"]),
        ({"k": 2.0}, TypeError, ["k=2.0", "float"]),
        ({"k": 0}, zoo.UserError, ["`k=0`"]),
        ({"threshold": None}, TypeError, ["threshold=None"]),
        ({"threshold": float("nan")}, zoo.UserError, ["`threshold=nan`"]),
        ({"threshold": 1.5}, zoo.UserError, ["`threshold=1.5`", "1"]),
        ({"threshold": -0.1}, zoo.UserError, ["`threshold=-0.1`", "0"]),
    ],
)
def test_wrong_arguments(tagger, given, error, parts):
    with raises(error, *parts):
        tagger.tag(**{"texts": ["a"]} | given)


def test_wrong_settings_are_refused_at_once_and_keep_the_old_ones(tagger):
    with raises(TypeError, "k='5'"):
        tagger.stream([], k="5")  # before the first item is asked for
    for value, error in [(0, zoo.UserError), (2.5, TypeError), (True, TypeError)]:
        with raises(error, f"batch_size={value}"):
            tagger.batch_size = value
    assert tagger.batch_size == 4


def test_numbers_of_numpy_are_numbers(tagger):
    assert tagger.tag(["cod"], np.int64(2), np.float32(0)) == tagger.tag(["cod"], 2)
    assert len(tagger.tag(["cod"], k=99)[0]) == 5


def test_a_stream_is_lazy_and_bounded(tagger):
    taken = []
    stream = tagger.stream(taken.append(i) or "cod" for i in count())
    assert taken == []
    next(stream)
    assert len(taken) == tagger.window


def test_errors_of_a_source_pass(tagger):
    def texts():
        yield "cod"
        raise OSError("the source broke")

    with pytest.raises(OSError, match="the source broke"):
        tagger.tag(texts())


def test_lone_surrogates_are_no_words_and_pairs_are_characters(tagger):
    broken, whole = tagger.tag(["cod\ud800quota \udcff", "cod quota"])
    assert [tag.label for tag in broken] == [tag.label for tag in whole]
    assert [tag.score for tag in broken] == pytest.approx([tag.score for tag in whole], abs=1e-6)


def test_texts_without_known_words_are_marked(tagger):
    tags = list(tagger.stream(["", "xyzzy !", "xyzzy cod", "\0"]))
    assert [found.known for found in tags] == [False, False, True, False]
    assert all(len(found) == 5 for found in tags)


def test_scores_are_never_nan(tagger):
    with torch.no_grad():
        next(tagger.module.head.parameters()).fill_(float("nan"))
    with raises(zoo.UserError, "NaN"):
        tagger.tag(["cod"])


@pytest.mark.parametrize("head", [Linear, PLT])
def test_threads_get_what_one_thread_gets(head):
    tagger = make(head)
    expected = tagger.tag(TEXTS)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: tagger.tag(TEXTS), range(40)))
    assert all(tags == expected for tags in found)


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda tagger: pickle.loads(pickle.dumps(tagger))])
def test_a_copy_gives_the_same(tagger, duplicate):
    other = duplicate(tagger)
    assert other.tag(TEXTS) == tagger.tag(TEXTS)
    assert other.batch_size == 4
    (tags,) = tagger.stream([""])
    assert duplicate(tags) == tags
    assert not duplicate(tags).known


@pytest.mark.parametrize(
    ("examples", "error", "parts"),
    [
        (5, TypeError, ["examples"]),
        (b"text", TypeError, ["examples"]),
        ([("cod", None)], TypeError, ["example 1"]),
        ([("cod", ["x"]), ("cod", 5)], TypeError, ["example 2"]),
        ([("cod", {"x": 1})], TypeError, ["example 1"]),
        ([(b"cod", ["x"])], TypeError, ["example 1"]),
        ([("cod", [b"x"])], TypeError, ["example 1"]),
        ([("cod", ["x"], "more")], TypeError, ["example 1"]),
        ([("cod", ["x\ud800"])], zoo.UserError, ["example 1", r"x\ud800"]),
    ],
)
def test_wrong_examples(tagger, examples, error, parts):
    with raises(error, *parts):
        tagger.add_labels(examples)
    assert tagger.names == [f"l{i}" for i in range(5)]


def test_labels_of_an_example_may_come_from_a_generator():
    from zoo.training.arguments import check_examples

    assert check_examples([("cod", (name for name in ("a", "b", "a")))]) == (["cod"], [["a", "b"]])


def test_paths(tagger, tmp_path):
    tagger.save(tmp_path / "a.ckpt")
    assert zoo.load(str(tmp_path / "a.ckpt"), "cpu").tag(TEXTS) == tagger.tag(TEXTS)
    assert zoo.load(tmp_path / "a.ckpt", torch.device("cpu")).names == tagger.names
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for use in (zoo.load, tagger.save):
        for value in (123, b"a.ckpt", None, True):
            with raises(TypeError, "path", repr(value)):
                use(value)
        for value in (tmp_path, "nowhere/a.ckpt", "", "a\0b", "x" * 5000, "~nobody-of-this-name/a", tmp_path / "loop"):
            with pytest.raises(zoo.UserError):
                use(value)
    assert {path.name for path in tmp_path.iterdir()} == {"a.ckpt", "loop"}


@pytest.mark.parametrize(("device", "error"), [(5, TypeError), *((name, zoo.UserError) for name in ("meta", "tpu9"))])
def test_devices(tagger, tmp_path, device, error):
    tagger.save(tmp_path / "a.ckpt")
    with raises(error, device):
        zoo.load(tmp_path / "a.ckpt", device)
