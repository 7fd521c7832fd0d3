"""Every linear engine works on every backbone, of which it reads nothing; classes are found by looking."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import heads
from backbones import Words
from heads import LinearEngine
from tests.contract.test_pairs import BACKBONES, SPACE, build, check_ranking, concrete, counts, documents, transition
from zoo.core.errors import UserError

ENGINES = concrete(heads, LinearEngine)
pairs = pytest.mark.parametrize(
    ("backbone", "engine"), [(b, e) for b in [*BACKBONES, Words] for e in ENGINES], ids=lambda kind: kind.__name__
)


class Pair(torch.nn.Module):
    def __init__(self, backbone, engine):
        super().__init__()
        self.backbone = build(backbone, SPACE)
        if self.backbone.reads_counts:
            self.backbone.learn_counts(counts(documents()))
        self.head = engine(self.backbone.dim, SPACE, min_documents=1)

    def fit(self, batch):
        self.head.fit(transition(self, batch))
        return self

    def features(self, batch):
        return replace(self.eval().backbone(batch), batch=batch)

    @torch.no_grad()
    def rank(self, batch, k):
        return self.head.rank(self.features(batch), k)


def test_engines_were_found():
    assert {"Bonsai", "OneVsRestSvm", "Parabel"} <= {kind.__name__ for kind in ENGINES}


@pairs
def test_fitted_rankings_are_sorted_and_padding_changes_nothing(backbone, engine):
    batch = documents()
    pair = Pair(backbone, engine).fit(batch)
    assert pair.head.pending == ()
    for k in (1, 4, SPACE.num_labels, SPACE.num_labels + 3):
        check_ranking(pair.rank(batch, k), len(batch), k)
    one, other = (pair.rank(documents(columns), SPACE.num_labels) for columns in (0, 10))
    assert torch.equal(one.labels, other.labels)
    assert torch.equal(one.scores, other.scores)
    assert one.labels[:, 0].tolist() == [0, 1, 2, 0, 4, 7] or engine.__name__ != "OneVsRestSvm"


@pairs
def test_the_state_carries_the_whole_ranking(backbone, engine):
    batch = documents()
    pair, other = Pair(backbone, engine).fit(batch), Pair(backbone, engine)
    other.load_state_dict(pair.state_dict())
    expected, got = (part.rank(batch, SPACE.num_labels) for part in (pair, other))
    assert torch.equal(got.labels, expected.labels)
    assert torch.equal(got.scores, expected.scores)


@pairs
def test_before_it_is_fitted_it_knows_no_label_and_nothing_trains_it(backbone, engine):
    batch, pair = documents(), Pair(backbone, engine)
    assert pair.head.pending == ("fit",)
    assert pair.head.get_extra_state() is None
    assert list(pair.head.parameters()) == []
    assert (pair.rank(batch, 3).labels == -1).all()
    with pytest.raises(UserError, match=rf"'main'.*{engine.__name__}.*`on_enter: \[fit\]`"):
        pair.head.loss(pair.features(batch), batch.targets, "main")
    with pytest.raises(UserError, match=engine.__name__):
        pair.head.rank(replace(pair.features(batch), batch=None), 3)


def test_no_encoder():
    backbone, batch = Words(SPACE), documents()
    features = backbone(batch)
    assert list(backbone.parameters()) == []
    assert features.pooled.tolist() == [[0.0]] * len(batch)
    assert features.tokens.shape == (len(batch), 0, 1)
    assert features.layers[-1] is features.tokens
    assert features.mask.shape == (len(batch), 0)
