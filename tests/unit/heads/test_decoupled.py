"""Decoupled: a head for each part of the labels, and one calibrated ranking."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.sparse import csr_array

from backbones.base import Features
from datamodules.batch import Batch, Targets
from heads import Decoupled, Head, Linear, Ranking, TransitionContext
from heads.base import ranked
from heads.tail.label_subset import SubsetContext
from heads.tail.platt import fit_sigmoid, logits_of
from tests.support.documents import label_space
from tests.support.errors import raises
from zoo.core.errors import UserError

DIM = 6
SPACE = label_space([30, 20, 15, 9, 8, 4, 3, 2, 1, 1], 50, unseen=["u"])
TRUTH = [[0, 1], [0, 4], [5], [2, 9], [1, 10], [3, 8]]


def make(fraction=0.3, seed=0, **kwargs):
    torch.manual_seed(seed)
    head = Decoupled(DIM, SPACE, Linear, Linear, fraction=fraction, **kwargs)
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head


def features(size=6, layers=1, seed=1):
    generator = torch.Generator().manual_seed(seed)
    vectors = tuple(torch.randn(size, DIM, generator=generator) for _ in range(layers))
    tokens = tuple(vector.unsqueeze(1) for vector in vectors)
    return Features(tokens[-1], torch.ones(size, 1, dtype=torch.bool), vectors[-1], tokens, vectors)


class Noted(TransitionContext):
    """Returns the rows passed to `augmented` as labels."""

    def augmented(self, words, targets, rows=None):
        return words, replace(targets, indices=rows)


def transition(given, truth, words=None):
    """A transition whose documents have their row as token id."""
    targets, rows = Targets.from_lists(truth), torch.arange(len(truth))
    given = replace(given, batch=Batch(rows[:, None], given.mask, targets, rows))
    return Noted(given, targets, words, val=(given, targets), batch_size=2)


def lists(targets):
    return [targets.indices[a:b].tolist() for a, b in targets.indptr.unfold(0, 2, 1).tolist()]


def test_parts_of_targets_and_spaces():
    targets = Targets.from_lists(TRUTH)
    assert lists(targets.part(0, 3)) == [[0, 1], [0], [], [2], [1], []]
    assert lists(targets.part(3, 10)) == [[], [1], [2], [6], [], [0, 5]]
    assert lists(targets.take(torch.tensor([3, 0, 3]))) == [[2, 9], [0, 1], [2, 9]]
    assert len(targets.take(torch.zeros(0, dtype=torch.long))) == 0
    head, tail = SPACE.part(0, 3), SPACE.part(3, 10)
    assert head.names + tail.names == SPACE.names
    assert head.counts + tail.counts == SPACE.counts
    assert tail.reference_counts == SPACE.reference_counts[3:10]
    assert head.num_documents == tail.num_documents == 50
    assert torch.equal(tail.inverse_propensity(), SPACE.inverse_propensity()[3:10])
    grown = SPACE.grown({"new": 2})
    assert (grown.part(0, 3).added, grown.part(3, 11).added) == (0, 1)


def test_parts_may_learn_from_all_documents():
    head, targets = make(all_documents=True), Targets.from_lists(TRUTH)
    assert head.head_documents(targets, 0).tolist() == head.tail_documents(targets, 0).tolist() == list(range(6))
    part = SubsetContext(transition(features(), TRUTH, csr_array(np.eye(6))), head.tail)
    assert lists(part.train_targets()) == [[], [1], [2], [6], [], [0, 5]]
    assert part.train_words().shape == (6, 6)


def test_stages_train_their_part():
    head, x, targets = make(), features(), Targets.from_lists(TRUTH)
    one = head.loss(x, targets, "head")["loss"]
    two = head.loss(x, targets, "tail")["loss"]
    both = head.loss(x, targets, "joint")
    assert torch.isclose(both["loss"], one + two)
    dense, logits = targets.dense(10), torch.cat([head.head.inner(x), head.tail.inner(x)], dim=1)
    slow = torch.nn.functional.binary_cross_entropy_with_logits(logits, dense, reduction="sum") / 6
    assert torch.isclose(both["loss"], slow)
    one.backward()
    assert all(p.grad is None for p in head.tail.parameters())
    assert all(p.grad is not None for p in head.head.parameters())


def test_without_tail_labels_it_equals_the_inner_head():
    torch.manual_seed(3)
    decoupled = Decoupled(DIM, SPACE, Linear, Linear, fraction=1.0)
    torch.manual_seed(3)
    plain = Linear(DIM, SPACE)
    x, targets = features(), Targets.from_lists(TRUTH)
    for stage in ("head", "joint"):
        assert torch.equal(decoupled.loss(x, targets, stage)["loss"], plain.loss(x, targets, stage)["loss"])
    for k in (1, 5, 10):
        one, other = decoupled.rank(x, k), plain.rank(x, k)
        assert torch.equal(one.labels, other.labels)
        assert torch.equal(one.scores, other.scores)
    assert decoupled.head_documents(targets, 0).tolist() == list(range(6))


def test_the_split_may_be_a_number_of_tail_labels():
    labels = SPACE.num_labels
    assert make(fraction=0.9, tail_labels=4).tail.num_labels == 4
    assert make(tail_labels=0).parts.keys() == {"head"}
    assert make(tail_labels=labels).parts.keys() == {"tail"}
    with raises(UserError, f"`tail_labels={labels}`", "'head'"):
        _ = make(tail_labels=labels).head
    with raises(UserError, "`tail_labels=-1`"):
        make(tail_labels=-1)


@pytest.mark.parametrize(("fraction", "missing"), [(1.0, "tail"), (0.05, "head")])
def test_parts_without_labels_are_left_out(fraction, missing):
    head = make(fraction)
    assert list(head.parts) == [{"tail": "head", "head": "tail"}[missing]]
    assert head.rank(features(), 10).labels.min() >= 0
    with raises(UserError, f"`fraction={fraction}`", f"'{missing}'"):
        head.loss(features(), Targets.from_lists(TRUTH), missing)
    with raises(UserError, f"'{missing}'"):
        getattr(head, f"{missing}_documents")(Targets.from_lists(TRUTH), 0)


def test_calibration_must_follow_training():
    head = make()
    head.check_plan(["head.fit", "tail.fit", "calibrate"])
    with raises(UserError, "calibrate"):
        head.check_plan(["head.fit", "calibrate", "tail.fit"])


def slow_ranking(head, x, k):
    """Labels of both parts one by one."""
    rows = []
    for i in range(len(x.pooled)):
        scored = []
        for name, start in (("head", 0), ("tail", 3)):
            place = int(name == "tail")
            for j, logit in enumerate(getattr(head, name).inner(x)[i].double().tolist()):
                scaled = head.slope[place].item() * logit + head.shift[place].item()
                scored.append((-scaled, start + j))
        rows.append([label for _, label in sorted(scored)[:k]])
    return rows


@pytest.mark.parametrize("k", [1, 3, 5, 10])
@pytest.mark.parametrize("calibrated", [False, True])
def test_ranking_equals_a_loop(k, calibrated):
    head, x = make(), features(40)
    if calibrated:
        head.slope.copy_(torch.tensor([0.5, 2.0]))
        head.shift.copy_(torch.tensor([1.0, -0.5]))
        head.calibrated.fill_(True)
    ranking = head.rank(x, k)
    assert ranking.labels.tolist() == slow_ranking(head, x, k)
    assert (ranking.scores.diff(dim=1) <= 0).all()
    if not calibrated:
        logits = torch.cat([head.head.inner(x), head.tail.inner(x)], dim=1)
        assert torch.equal(ranking.scores, ranked(logits, k).scores)


def test_untrained_parts_are_not_ranked():
    class Late(Linear):
        done = False

        @property
        def pending(self):
            return () if self.done else ("fit",)

        def fit(self, ctx):
            self.seen = ctx.train_targets()
            self.done = True

    head = Decoupled(DIM, SPACE, Linear, Late, fraction=0.3)
    assert head.pending == ("tail.fit",)
    assert head.rank(features(), 5).labels.max() == 2
    head.tail.fit(transition(features(), TRUTH))
    assert head.pending == ()
    assert lists(head.tail.inner.seen) == [[1], [2], [6], [0, 5]]
    assert (head.rank(features(), 10).labels > 2).any()


def test_each_part_may_read_its_own_layer():
    head, x = make(layer_per_part=True), features(layers=2)
    assert head.needs_layers == 2
    expected = torch.cat([head.head.inner(features(layers=2, seed=1)), head.tail.inner(x)], dim=1)
    first = replace(x, pooled=x.vectors[0], vectors=(x.vectors[0],))
    expected[:, :3] = head.head.inner(first)
    assert torch.equal(head.rank(x, 10).labels, ranked(expected, 10).labels)
    with raises(UserError, "layer"):
        Decoupled(DIM, SPACE, lambda dim, space: Linear(dim, space, layers=2), Linear, layer_per_part=True)


def test_parts_see_their_own_documents_and_labels():
    words = csr_array(np.arange(12.0).reshape(6, 2))
    head, ctx = make(), transition(features(layers=2), TRUTH, words)
    part = SubsetContext(ctx, head.tail)
    assert lists(part.train_targets()) == [[1], [2], [6], [0, 5]]
    assert (part.train_words().toarray() == words.toarray()[[1, 2, 3, 5]]).all()
    batches = [batch for _, batch in part.train_features()]
    assert torch.cat([batch.rows for batch in batches]).tolist() == [0, 1, 2, 3]
    assert [row for batch in batches for row in lists(batch.targets)] == [[1], [2], [6], [0, 5]]
    ((_, batch),) = part.train_features(torch.tensor([2, 3]))
    assert batch.ids.flatten().tolist() == [3, 5]
    assert batch.rows.tolist() == [2, 3]
    assert lists(part.val_targets()) == [[], [1], [2], [6], [], [0, 5]]
    assert sum(len(batch) for _, batch in part.val_features()) == 6
    assert part.augmented(words, part.train_targets())[1].indices.tolist() == [1, 2, 3, 5]


def test_documents_chosen_by_a_part_are_rows_of_the_corpus():
    class Chooser(Linear):
        def last_documents(self, targets, seed):
            return torch.tensor([len(targets) - 1, 2 * len(targets) - 1])  # and its first copy

    head = Decoupled(DIM, SPACE, Chooser, Chooser, fraction=0.3)
    assert head.head.last_documents(Targets.from_lists(TRUTH), 0).tolist() == [4, 4 + 6]
    with pytest.raises(AttributeError):
        _ = head.head.nothing


def platt(logits, hits):
    """SciPy's optimum of the likelihood with Platt's targets."""
    right, wrong = hits.sum(), (1 - hits).sum()
    targets = np.where(hits > 0, (right + 1) / (right + 2), 1 / (wrong + 2))

    def loss(weights):
        scores = weights[0] * logits + weights[1]
        return (np.logaddexp(0, scores) - targets * scores).mean()

    return minimize(loss, np.array([1.0, 0.0]), method="BFGS", options={"gtol": 1e-9}).x


@pytest.mark.parametrize(("slope", "shift", "scale"), [(1.0, 0.0, 2.0), (0.3, -2.0, 1.0), (4.0, 5.0, 8.0)])
def test_platt_scaling_equals_scipy(slope, shift, scale):
    rng = np.random.default_rng(0)
    logits = rng.normal(-3, scale, 5000)
    hits = (rng.random(5000) < 1 / (1 + np.exp(-slope * logits - shift))).astype(float)
    found = fit_sigmoid(torch.from_numpy(logits), torch.from_numpy(hits), lambda value: value)
    assert np.allclose(found, platt(logits, hits), rtol=1e-4, atol=1e-4)
    assert np.allclose(found, [slope, shift], rtol=0.2, atol=0.3)


def test_platt_scaling_of_degenerate_scores_is_finite():
    parted = fit_sigmoid(torch.tensor([-2.0, -1, 1, 2]).double(), torch.tensor([0.0, 0, 1, 1]).double(), lambda v: v)
    assert all(np.isfinite(parted))
    assert parted[0] > 0
    none = torch.zeros(0, dtype=torch.double)
    assert fit_sigmoid(none, none, lambda v: v) == (1.0, 0.0)
    assert fit_sigmoid(torch.ones(5).double(), torch.ones(5).double(), lambda v: v) == (1.0, 0.0)
    backwards = fit_sigmoid(torch.arange(10).double(), (torch.arange(10) < 3).double(), lambda v: v)
    assert backwards[0] > 0  # the part's own order stays


def test_calibration_fits_each_part_on_validation_documents():
    head, x = make(), features(200, seed=2)
    logits = torch.cat([head.head.inner(x) * 0.5 - 1, head.tail.inner(x) * 2 - 3], dim=1).detach()
    drawn = torch.rand(logits.shape, generator=torch.Generator().manual_seed(0)) < logits.sigmoid()
    ctx = transition(x, [row.nonzero().flatten().tolist() for row in drawn])
    head.calibrate(ctx)
    for place, part, start, stop in ((0, head.head, 0, 3), (1, head.tail, 3, 10)):
        scores = logits_of(part.inner(x).double().sigmoid()).flatten().detach().numpy()
        expected = platt(scores, drawn[:, start:stop].flatten().double().numpy())
        assert np.allclose([head.slope[place].item(), head.shift[place].item()], expected, rtol=1e-3, atol=1e-3)
    assert set(ctx.logged) == {f"calibrate/{p}_{w}" for p in ("head", "tail") for w in ("slope", "shift")}
    again = make(seed=5)
    again.load_state_dict(head.state_dict())
    assert torch.equal(again.rank(x, 10).scores, head.rank(x, 10).scores)


def test_raw_scores_are_merged_without_calibration():
    head, x = make(calibrate=False), features(40)
    ctx = transition(x, [[0]] * 40)
    head.calibrate(ctx)
    assert ctx.logged == {}
    logits = torch.cat([head.head.inner(x), head.tail.inner(x)], dim=1)
    assert torch.equal(head.rank(x, 10).scores, ranked(logits, 10).scores)


def test_fills_stay_last():
    class Few(Head):
        def loss(self, features, targets, stage):
            raise NotImplementedError

        def rank(self, features, k):
            size = len(features.pooled)
            labels = torch.full((size, k), -1)
            labels[:, 0] = 1
            return Ranking(torch.zeros(size, k).index_fill(1, torch.tensor([0]), 0.25), labels)

    head = Decoupled(DIM, SPACE, Few, Few, fraction=0.3)
    head.slope.fill_(1)
    head.shift.fill_(9)
    for calibrated in (False, True):
        head.calibrated.fill_(calibrated)
        ranking = head.rank(features(2), 4)
        assert ranking.labels.tolist() == [[1, 4, -1, -1]] * 2
        assert (ranking.scores[:, 2:] == 0).all()
