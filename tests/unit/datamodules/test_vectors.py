"""Word vectors in the formats of GloVe and word2vec."""

import gzip

import pytest
import torch

from datamodules.prepare.vectors import read_vectors
from tests.support.errors import raises
from zoo.core.errors import UserError

WORDS = {"[PAD]": 0, "[UNK]": 1, "cat": 2, "dog": 3, "öl": 4}
GLOVE = "cat 1 2 3\nbird 4 5 6\nöl -0.5 1e-3 0\n"
WORD2VEC = "3 3\n" + GLOVE
FILES = {"glove.txt": GLOVE, "glove.txt.gz": GLOVE, "w2v.txt": WORD2VEC, "w2v.txt.gz": WORD2VEC}


def put(folder, name, text):
    content = text.encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return folder / name


def read(path, seed=0):
    return read_vectors(path, WORDS, size=6, pad_id=0, seed=seed)


def refused(path, *parts):
    with raises(UserError, path.name, *parts):
        read(path)


@pytest.mark.parametrize("name", FILES)
def test_glove_and_word2vec_formats(tmp_path, name):
    vectors = read(put(tmp_path, name, FILES[name]))
    assert vectors.matrix.shape == (6, 3)
    assert vectors.matrix.dtype == torch.float32
    assert vectors.matrix[2].tolist() == [1, 2, 3]
    assert vectors.matrix[4].tolist() == pytest.approx([-0.5, 1e-3, 0])
    assert vectors.matrix[0].tolist() == [0, 0, 0]
    assert vectors.coverage == pytest.approx(2 / 5)


def test_missing_words_are_random_and_follow_the_seed(tmp_path):
    path = put(tmp_path, "a.txt", GLOVE)
    one, same, other = read(path).matrix, read(path).matrix, read(path, seed=1).matrix
    assert torch.equal(one, same)
    for row in (1, 3, 5):
        assert not torch.equal(one[row], other[row])
        assert ((one[row] != 0) & (one[row].abs() <= 1)).all()
    assert not torch.equal(one[1], one[3])
    assert torch.equal(one[2], other[2])


def test_padding_is_zero_even_if_the_file_has_it(tmp_path):
    assert read(put(tmp_path, "a.txt", GLOVE + "[PAD] 1 1 1\n")).matrix[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("line", ["dog 1 2", "dog 1 2 3 4", "dog 1 x 3", "dog 1 nan 3", "dog"])
def test_malformed_lines_are_named(tmp_path, line):
    refused(put(tmp_path, "a.txt", WORD2VEC + line + "\n"), "line 5")
    refused(put(tmp_path, "b.txt", GLOVE + line + "\n"), "line 4")


def test_words_with_spaces_are_skipped(tmp_path):
    # glove.840B.300d has lines such as "at name@domain.com 0.1 ..." and ". . . 0.1 ..."
    vectors = read(put(tmp_path, "a.txt", GLOVE + "dog name@domain.com 7 8 9\n"))
    assert vectors.coverage == pytest.approx(2 / 5)


@pytest.mark.parametrize("text", ["cat\ndog\n", "cat 1\ndog 2\n", ""])
def test_files_without_vectors_are_rejected(tmp_path, text):
    refused(put(tmp_path, "a.txt", text))


@pytest.mark.parametrize("content", [gzip.compress(GLOVE.encode() * 50)[:-12], b"plain text"], ids=["cut", "plain"])
def test_broken_gzip_files_are_reported(tmp_path, content):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(content)
    refused(path)
