"""Word vectors from the files that people have."""

from __future__ import annotations

import gzip

import pytest
import torch

from datamodules.errors import UserError
from datamodules.vectors import read_vectors

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


def complaint(path):
    with pytest.raises(UserError) as caught:
        read(path)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", FILES)
def test_formats(tmp_path, name):
    vectors = read(put(tmp_path, name, FILES[name]))
    assert vectors.matrix.shape == (6, 3)
    assert vectors.matrix.dtype == torch.float32
    assert vectors.matrix[2].tolist() == [1, 2, 3]
    assert vectors.matrix[4].tolist() == pytest.approx([-0.5, 1e-3, 0])
    assert vectors.matrix[0].tolist() == [0, 0, 0]
    assert vectors.coverage == pytest.approx(2 / 5)


def test_missing_words_are_random_but_the_same_for_a_seed(tmp_path):
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


def test_an_integer_as_first_word_is_no_header(tmp_path):
    assert read(put(tmp_path, "a.txt", "7 1 2 3\n" + GLOVE)).matrix[2].tolist() == [1, 2, 3]


@pytest.mark.parametrize("line", ["dog 1 2", "dog 1 2 3 4", "dog 1 x 3", "dog 1 nan 3", "dog"])
def test_a_malformed_line_is_named(tmp_path, line):
    assert "a.txt, line 5: " in complaint(put(tmp_path, "a.txt", WORD2VEC + line + "\n"))
    assert "b.txt, line 4: " in complaint(put(tmp_path, "b.txt", GLOVE + line + "\n"))


def test_a_last_line_without_its_end_is_read_as_it_stands(tmp_path):
    assert read(put(tmp_path, "a.txt", GLOVE + "dog 7 8 9")).matrix[3].tolist() == [7, 8, 9]


def test_words_with_spaces_inside_are_passed_over(tmp_path):
    # glove.840B.300d has lines such as "at name@domain.com 0.1 ..." and ". . . 0.1 ..."
    vectors = read(put(tmp_path, "a.txt", GLOVE + "dog name@domain.com 7 8 9\n"))
    assert vectors.coverage == pytest.approx(2 / 5)


@pytest.mark.parametrize("text", ["cat\ndog\n", "cat 1\ndog 2\n", ""])
def test_files_that_hold_no_vectors(tmp_path, text):
    assert "not a text file of word vectors" in complaint(put(tmp_path, "a.txt", text))


@pytest.mark.parametrize("content", [gzip.compress(GLOVE.encode() * 50)[:-12], b"plain text"], ids=["cut", "plain"])
def test_a_broken_gzip_file_is_a_mistake_of_the_user(tmp_path, content):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(content)
    assert "a.txt.gz" in complaint(path)
