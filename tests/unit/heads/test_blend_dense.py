"""Features of Blend from document vectors, against slow loops."""

import math
from dataclasses import replace

import pytest
import torch

from backbones import Words
from heads.base import Ranking
from heads.blend import DenseNeighbours, LabelTexts
from heads.blend.candidate_union import Candidates, union
from tests.support.blend import LABELS, Corpus
from tests.support.documents import seeded
from tests.support.errors import raises
from zoo.core.errors import UserError

DIM, SIZE, QUERIES = 6, 50, 9
KNOWN = LABELS - 1  # labels with a text


class Encoder(Words):
    dim = DIM


def draw(size, seed):
    return torch.randn(size, DIM, generator=seeded(seed))


@pytest.fixture(scope="module")
def corpus():
    return Corpus(documents=SIZE, seed=0)


@pytest.fixture(scope="module")
def context(corpus):
    found = corpus.context()
    found.backbone = Encoder(corpus.space)
    found.features = replace(found.features, pooled=draw(SIZE, 0))
    features, batch = found.labels[0]
    found.labels = [(replace(features, pooled=draw(LABELS, 1)[:KNOWN]), batch)]
    return found


@pytest.fixture(scope="module")
def found():
    """Two members' candidates of other documents, with padding."""
    other, generator, rankings = Corpus(documents=QUERIES, seed=1), seeded(3), []
    for _ in range(2):
        labels = torch.stack([torch.randperm(LABELS, generator=generator)[:7] for _ in range(QUERIES)])
        rankings.append(Ranking(torch.rand(labels.shape, generator=generator).sort(1, descending=True).values, labels))
    rankings[1].labels[3, 2:] = -1
    return union(rankings, replace(other.batch, vectors=draw(QUERIES, 2)))


def cosine(one, other):
    return float(torch.nn.functional.cosine_similarity(one, other, dim=0))


def learned(group, corpus, context, rows=None, **settings):
    made = group(corpus.space, ["one", "two"], **settings)
    made.learn(context, torch.arange(SIZE) if rows is None else rows)
    return made


def assert_equal(group, found, slow):
    got = group(found)
    assert got.shape == (*found.labels.shape, len(group.names))
    assert got.dtype == torch.float32
    for document, place in found.known.nonzero().tolist():
        expected = slow(document, int(found.labels[document, place]))
        assert got[document, place].tolist() == pytest.approx(expected, abs=2e-3, nan_ok=True)


@pytest.mark.parametrize("rows", [torch.arange(SIZE), torch.arange(0, SIZE, 3)])
def test_neighbors(corpus, context, found, rows):
    def slow(document, label):
        cosines = [cosine(found.batch.vectors[document], context.features.pooled[row]) for row in rows.tolist()]
        near = sorted(range(len(rows)), key=lambda i: -cosines[i])[:5]
        has = [label in corpus.labels[int(rows[i])] for i in near]
        weights = [max(cosines[i], 0) ** 3 for i in near]
        votes = sum(w for w, own in zip(weights, has, strict=True) if own) / sum(weights)
        best = max((cosines[i] for i, own in zip(near, has, strict=True) if own), default=0)
        return [votes, best, cosines[near[0]]]

    assert_equal(learned(DenseNeighbours, corpus, context, rows, k=5, power=3), found, slow)


def test_fewer_documents_than_neighbors(corpus, context, found):
    votes = learned(DenseNeighbours, corpus, context, torch.arange(3), k=40)(found)[..., 0]
    assert votes.isfinite().all()
    assert 0 <= votes.min() <= votes.max() <= 1


def test_label_texts(corpus, context, found):
    texts = context.labels[0][0].pooled

    def slow(document, label):
        vector = found.batch.vectors[document]
        cosines = {x: cosine(vector, texts[x]) for x in found.labels[document].tolist() if 0 <= x < KNOWN}
        if label not in cosines:
            return [math.nan, math.nan]
        return [cosines[label], cosines[label] - max(cosines.values())]

    assert_equal(learned(LabelTexts, corpus, context), found, slow)


@pytest.mark.parametrize("group", [DenseNeighbours, LabelTexts])
def test_documents_do_not_depend_on_each_other(group, corpus, context, found):
    made = learned(group, corpus, context)
    for document in range(QUERIES):
        one = torch.tensor([document])
        parts = (part[one] for part in (found.labels, found.logits, found.ranks, found.proposed))
        alone = made(Candidates(*parts, found.batch.take(one)))
        assert torch.allclose(alone[0], made(found)[document], atol=1e-6, equal_nan=True)


@pytest.mark.parametrize("group", [DenseNeighbours, LabelTexts])
def test_the_state_is_all_that_prediction_needs(group, corpus, context, found):
    made, again = learned(group, corpus, context), group(corpus.space, ["one", "two"])
    assert again.get_extra_state() is None
    again.load_state_dict(made.state_dict())
    assert torch.equal(again(found).nan_to_num(9), made(found).nan_to_num(9))


@pytest.mark.parametrize("group", [DenseNeighbours, LabelTexts])
@pytest.mark.parametrize(
    "vectors",
    [
        None,
        torch.ones(4, DIM).half(),
        torch.full((SIZE, DIM), math.nan).half(),
        torch.ones(SIZE, DIM),
        torch.ones(SIZE).half(),
    ],
)
def test_damaged_states_are_refused(group, corpus, context, vectors):
    made = learned(group, corpus, context)
    state = made.get_extra_state()
    with raises(UserError, "of the checkpoint"):
        made.set_extra_state(state | {"vectors": vectors})


@pytest.mark.parametrize("group", [DenseNeighbours, LabelTexts])
def test_vectors_are_needed_and_have_one_width(group, corpus, context, found):
    with raises(UserError, group.__name__, "WordTransformer"):
        learned(group, corpus, corpus.context())
    made = learned(group, corpus, context)
    for vectors in (None, draw(QUERIES, 2)[:, 1:]):
        with raises(UserError, group.__name__, DIM):
            made(replace(found, batch=replace(found.batch, vectors=vectors)))


@pytest.mark.parametrize("settings", [{"k": 0}, {"power": -1}, {"power": math.nan}])
def test_invalid_settings_are_refused(corpus, settings):
    with raises(UserError, *settings):
        DenseNeighbours(corpus.space, ["one"], **settings)
