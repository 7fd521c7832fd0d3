"""Features of Blend against slow loops, and the sparse matrices that they look up."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array

from heads.base import Ranking
from heads.blend import Clusters, Cooccurrence, Counts, Hierarchy, LabelWords, Neighbours, Scores
from heads.blend.candidate_union import union
from heads.blend.sparse import nearest, pack, unpack, values_at
from tests.support.blend import LABELS, LEAD, UNKNOWN, WORDS, Corpus, label_batch
from tests.support.errors import raises
from tests.support.rerank import ranking
from zoo.core.errors import UserError


@pytest.fixture(scope="module")
def corpus():
    return Corpus(documents=50, seed=0)


def candidates(corpus, size=7, seed=1):
    """Two members' candidates of other documents, with padding."""
    other = Corpus(documents=9, seed=seed)
    generator = torch.Generator().manual_seed(seed)
    rankings = []
    for _ in range(2):
        labels = torch.stack([torch.randperm(LABELS, generator=generator)[:size] for _ in range(9)])
        scores = torch.rand(labels.shape, generator=generator).sort(dim=1, descending=True).values
        rankings.append(Ranking(scores, labels))
    rankings[1].labels[3, 2:], rankings[1].scores[3, 2:] = -1, 0
    return union(rankings, other.batch), rankings, other


def fitted(group, corpus, **settings):
    made = group(corpus.space, ["one", "two"], **settings)
    made.learn(corpus.context(), torch.arange(len(corpus.targets)))
    return made


def assert_equal(group, found, slow):
    """Compare with a function of (document, label), where it is not None."""
    got = group(found)
    assert got.shape == (*found.labels.shape, len(group.names))
    assert got.dtype == torch.float32
    pairs = [(*pair, slow(pair[0], int(found.labels[*pair]))) for pair in found.known.nonzero().tolist()]
    compared = [pair for pair in pairs if pair[-1] is not None]
    assert len(compared) > len(pairs) / 2
    for document, place, expected in compared:
        assert got[document, place].tolist() == pytest.approx(expected, abs=1e-5, nan_ok=True)


def logit(p):
    p = min(max(p, 1e-7), 1 - 1e-7)
    return math.log(p / (1 - p))


def test_candidates_are_the_union_in_the_order_of_the_members():
    one, two = ranking([[0.9, 0.2], [0.7, 0.0]], [[4, 1], [2, -1]]), ranking([[0.8, 0.5], [0.6, 0.1]], [[1, 3], [0, 2]])
    found = union([one, two])
    assert found.labels.tolist() == [[4, 1, 3], [2, 0, -1]]
    assert found.proposed.tolist()[0] == [[True, False], [True, True], [False, True]]
    assert found.ranks.tolist()[0] == [[0, 1], [1, 0], [1, 1]]
    assert found.logits[0].sigmoid().flatten().tolist() == pytest.approx([0.9, 0.5, 0.2, 0.8, 0.2, 0.5])
    assert found.mean[1].tolist()[2] == -math.inf


def test_scores(corpus):
    found, rankings, _ = candidates(corpus)

    def slow(document, label):
        rows = []
        known = [x for x in found.labels[document].tolist() if x >= 0]
        for part in rankings:
            labels = [x for x in part.labels[document].tolist() if x >= 0]
            scores = [logit(p) for p in part.scores[document].tolist()[: len(labels)]]
            given = dict(zip(labels, scores, strict=True))
            every = sorted((given.get(x, scores[-1]) for x in known), reverse=True)
            own = given.get(label, scores[-1])
            place = labels.index(label) if label in given else len(labels) - 1
            rows += [own, place, own - every[0], own - every[min(4, len(every) - 1)], float(label in given)]
        return rows

    assert_equal(Scores(corpus.space, ["one", "two"]), found, slow)


def test_counts(corpus):
    found, _, _ = candidates(corpus)
    inverse = corpus.space.inverse_propensity()
    assert_equal(
        Counts(corpus.space, []),
        found,
        lambda _, label: [math.log1p(corpus.space.counts[label]), math.log(inverse[label])],
    )


def tfidf_of(corpus, first):
    """Dense TF-IDF of lists of words, of a vocabulary learned from the training documents, document by document."""
    lists = [row[:first] for row in corpus.rows]
    frequency = [sum(word in row for row in lists) for word in range(WORDS)]

    def vector(row):
        values = np.zeros(WORDS)
        for word in set(row[:first]):
            if frequency[word]:
                idf = 1 + math.log((1 + len(lists)) / (1 + frequency[word]))
                values[word] = (1 + math.log(row[:first].count(word))) * idf
        return values / max(np.linalg.norm(values), 1e-12)

    return [vector(row) for row in corpus.rows], vector


@pytest.mark.parametrize("k", [3, 80])
def test_neighbours(corpus, k):
    found, _, other = candidates(corpus)

    def slow(document, label):
        features = []
        for first in (None, LEAD):
            vectors, vector = tfidf_of(corpus, first)
            query = vector(other.rows[document])
            cosines = sorted(((float(query @ row), i) for i, row in enumerate(vectors)), key=lambda x: -x[0])
            if k < len(cosines) and cosines[k - 1][0] - cosines[k][0] < 1e-6:
                return None  # which of two equal ones is among the nearest is up to rounding
            cosines = cosines[:k]
            total = sum(c**2 for c, _ in cosines)
            votes = sum(c**2 for c, i in cosines if label in corpus.labels[i])
            best = max([c for c, i in cosines if label in corpus.labels[i]], default=0.0)
            features += [votes / total if total else 0.0, best, cosines[0][0]]
        return features

    assert_equal(fitted(Neighbours, corpus, k=k, lead=LEAD), found, slow)


def test_label_words(corpus):
    found, _, other = candidates(corpus)
    frequency = [sum(word in row for row in corpus.rows) for word in range(WORDS)]
    texts = label_batch()

    def slow(document, label):
        features = []
        words = list(dict.fromkeys(texts.ids[label][texts.mask[label]].tolist())) if label < LABELS - 1 else []
        for size in (2, 64):
            for first in (None, LEAD):
                known = [word for word in words[:size] if frequency[word]]
                idf = {word: 1 + math.log((1 + len(corpus.rows)) / (1 + frequency[word])) for word in known}
                there = sum(value for word, value in idf.items() if word in other.rows[document][:first])
                features.append(there / sum(idf.values()) if idf else math.nan)
        return features

    group = fitted(LabelWords, corpus, lead=LEAD, name=2)
    assert_equal(group, found, slow)
    assert group(found)[found.labels == LABELS - 1].isnan().all()  # a label without known words
    ids = found.words.ids.masked_fill(~found.words.mask, UNKNOWN)  # new words do not look like those of label texts
    longer = replace(found, batch=replace(found.words, ids=ids, mask=torch.ones_like(found.words.mask)))
    assert torch.equal(group(longer).nan_to_num(-1), group(found).nan_to_num(-1))


def sum_and_max(found, document, label, related):
    labels = [x for x in found.labels[document].tolist() if x >= 0]
    chances = [
        1 / (1 + math.exp(-float(mean)))
        for x, mean in zip(labels, found.mean[document], strict=False)
        if x != label and related(x)
    ]
    return [sum(chances), max(chances, default=0.0)]


def test_clusters(corpus):
    found, _, _ = candidates(corpus)
    group = fitted(Clusters, corpus, size=3)
    sizes = group.cluster_of.bincount()
    assert len(sizes) == 4
    assert sizes.max() - sizes.min() <= 1

    def slow(document, label):
        return sum_and_max(found, document, label, lambda x: group.cluster_of[x] == group.cluster_of[label])

    assert_equal(group, found, slow)
    other = Clusters(corpus.space, [], size=3)
    other.set_extra_state(group.get_extra_state())
    assert torch.equal(other(found), group(found))
    for damaged in ({}, {"cluster_of": group.cluster_of[1:]}, {"cluster_of": group.cluster_of.float()}):
        with raises(UserError, "clusters"):
            other.set_extra_state(damaged)


def test_hierarchy(corpus):
    found, _, _ = candidates(corpus)
    pairs = [(1, 0), (2, 0), (3, 1), (5, 4), (5, 0), (7, 3)]
    space = replace(corpus.space, parents=[label for pair in pairs for label in pair])

    def slow(document, label):
        above = sum_and_max(found, document, label, lambda x: (label, x) in pairs)
        return above + sum_and_max(found, document, label, lambda x: (x, label) in pairs)

    assert_equal(Hierarchy(space, []), found, slow)
    assert Hierarchy(corpus.space, [])(found).isnan().all()


def test_cooccurrence(corpus):
    found, _, _ = candidates(corpus)

    def slow(document, label):
        mean = {x: float(found.mean[document, i]) for i, x in enumerate(found.labels[document].tolist()) if x >= 0}
        terms = [0.0]
        for other in sorted(mean, key=lambda x: -mean[x])[:4]:
            if other != label:
                having = [row for row in corpus.labels if other in row]
                share = sum(label in row for row in having) / max(len(having), 1)
                terms.append(share / (1 + math.exp(-mean[other])))
        return [max(terms), sum(terms)]

    assert_equal(fitted(Cooccurrence, corpus, others=4), found, slow)


@pytest.mark.parametrize("group", [Neighbours, LabelWords, Cooccurrence])
def test_what_a_group_has_learned_is_in_its_state(corpus, group):
    found, _, _ = candidates(corpus)
    made, other = fitted(group, corpus), group(corpus.space, ["one", "two"])
    assert other.get_extra_state() is None
    other.load_state_dict(made.state_dict())
    assert torch.equal(other(found).nan_to_num(-1), made(found).nan_to_num(-1))
    damaged = made.get_extra_state()
    part = damaged if group is Cooccurrence else next(iter(damaged.values()))
    part["columns"] = part["columns"] + 1_000
    with raises(UserError, "damaged"):
        other.set_extra_state(damaged)


def test_learning_from_some_documents_ignores_the_others(corpus):
    found, _, _ = candidates(corpus)
    rows, part = torch.arange(0, 50, 2), Corpus(documents=50, seed=0)
    part.keep(rows)
    for group in (Neighbours, LabelWords, Cooccurrence):
        one = group(corpus.space, ["one", "two"])
        one.learn(corpus.context(), rows)
        other = fitted(group, part)
        assert torch.equal(one(found).nan_to_num(-1), other(found).nan_to_num(-1))


def test_values_and_nearest_rows_equal_dense_ones():
    random = np.random.default_rng(0)
    dense = (random.random((30, 8)) * (random.random((30, 8)) < 0.5)).astype(np.float32)
    matrix = csr_array(dense)
    rows, columns = random.integers(0, 30, (5, 1)), random.integers(0, 8, (5, 6))
    assert np.array_equal(values_at(matrix, rows, columns), dense[rows, columns])
    assert not values_at(csr_array((30, 8), dtype=np.float32), rows, columns).any()
    near = nearest(matrix[:4], csr_array(matrix.T), 3)
    expected = np.argsort(-(dense[:4] @ dense.T), axis=1, kind="stable")[:, :3]
    assert near.labels.tolist() == expected.tolist()
    empty = nearest(csr_array((2, 8), dtype=np.float32), csr_array(matrix.T), 3)
    assert (empty.labels == -1).all()


def test_damaged_matrices_are_refused():
    matrix = csr_array(np.eye(3, 4, dtype=np.float32))
    assert (unpack(pack(matrix), "it", 3, 4) != matrix).nnz == 0
    for damage in (
        {"values": torch.tensor([1.0, math.nan, 1.0])},
        {"values": torch.ones(3).double()},
        {"columns": torch.tensor([0, 1], dtype=torch.int32)},
        {"columns": torch.tensor([0, 1, 4], dtype=torch.int32)},
        {"starts": torch.tensor([0, 2, 1, 3], dtype=torch.int32)},
        {"starts": torch.tensor([], dtype=torch.int32)},
        {"width": 5},
        {"columns": None},
    ):
        with raises(UserError, "it of the checkpoint"):
            unpack(pack(matrix) | damage, "it", 3, 4)
    with raises(UserError, "it of the checkpoint"):
        unpack(None, "it")
