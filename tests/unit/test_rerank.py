"""Rerank: candidates of another head in a new order, what it learns that from, and what it costs."""

from __future__ import annotations

import pytest
import torch

from datamodules.batch import LabelSpace, Targets
from datamodules.errors import UserError
from heads import Linear, PrototypeTransfer, Rerank
from heads.base import Ranking
from heads.measures import Measure, relevant
from heads.propensity import GRID, by_propensity, choice
from heads.ranknet import RankNetTraining
from tests.unit import httn
from tests.unit.httn import wrap
from tests.unit.rerank import Context, Folded, Given, build, long_tail, ranking
from zoo.metrics import RankingMetrics

QUICK = RankNetTraining(steps=250, batch_size=128, lr=1e-3, margin_weight=5, allowed_loss=0.01)


def measured(space, ranking, targets):
    metrics = RankingMetrics(space, ks=(1, 2, 3, 5))
    metrics.update(ranking.scores, ranking.labels, targets)
    return {name: float(value) for name, value in metrics.compute().items()}


def halves(seed=0, unseen=0):
    """A corpus of 1,200 documents: scores and labels of the first 800, and of the others."""
    space, targets, scores = long_tail(documents=1200, seed=seed, unseen=unseen)
    parts = (torch.arange(800), torch.arange(800, 1200))
    return space, *((scores[rows], targets.take(rows)) for rows in parts)


# --- rankings


@pytest.mark.parametrize("on", ["probabilities", "logits"])
@pytest.mark.parametrize("k", [1, 5, 40])
def test_it_begins_as_the_inner_head_to_the_bit(on, k):
    space, _, scores = long_tail(documents=50)
    for candidates in (10, 100):
        head = build(space, on=on, candidates=candidates, blocks=2)
        got, expected = head.rank(wrap(scores), k), head.inner.rank(wrap(scores), k)
        assert torch.equal(got.labels, expected.labels)
        assert torch.equal(got.scores, expected.scores)


def test_sure_labels_stay_in_the_inner_heads_order():
    space, _, _ = long_tail(documents=50)
    head = build(space, exponent=0.5)
    head.power, head.is_trained = 0.0, True
    got = head.reranked(ranking([[1.0, 1.0, 1.0]], [[7, 3, 5]]), 3)
    assert got.labels.tolist() == [[7, 3, 5]]  # by logits they differed


def test_no_label_comes_from_outside_the_candidates():
    space, (scores, targets), _ = halves()
    head = build(space, Folded, candidates=6, ranknet=QUICK)
    head.train_ranknet(Context(scores, targets))
    head.exponent.fill_(1)
    head._note_progress()
    got, base = head.rank(wrap(scores), 6), head.inner.rank(wrap(scores), 6)
    assert torch.equal(got.labels.sort().values, base.labels.sort().values)
    assert not torch.equal(got.labels, base.labels)
    assert (got.scores.diff(dim=1) <= 0).all()
    assert ((got.scores >= 0) & (got.scores <= 1)).all()


def test_what_follows_the_candidates_follows_them():
    """The network sees the same candidates, however many labels are asked for."""
    space, (scores, targets), _ = halves()
    head = build(space, Folded, candidates=6, ranknet=QUICK)
    head.train_ranknet(Context(scores, targets))
    few, many = head.rank(wrap(scores), 4), head.rank(wrap(scores), 12)
    assert torch.equal(few.labels, many.labels[:, :4])
    assert torch.equal(many.labels[:, 6:], head.inner.rank(wrap(scores), 12).labels[:, 6:])
    assert (many.scores.diff(dim=1) <= 0).all()


def test_short_rows_stay_short():
    space, _, _ = long_tail(documents=50)
    head = build(space, exponent=1.0)
    torch.nn.init.normal_(head.net.second[0].weight)
    head.is_trained = True
    for on in ("probabilities", "logits"):
        head.on = on
        got = head.reranked(ranking([[0.6, 0.1, 0.0, 0.0]], [[4, 30, -1, -1]]), 4)
        assert sorted(got.labels[0, :2].tolist()) == [4, 30]
        assert got.labels[0, 2:].tolist() == [-1, -1]
        assert got.scores[0, 2:].tolist() == [0, 0]


def test_the_propensity_form_ranks_by_r_to_the_power_times_f():
    space, _, scores = long_tail(documents=50)
    inverse, base = space.inverse_propensity(), Given(40, space).rank(wrap(scores), 40)
    for power in (0.3, 1.0):
        got = build(space, exponent=power).rank(wrap(scores), 40)
        expected = (scores.double() * inverse**power).argsort(dim=1, descending=True, stable=True)
        assert (got.labels == expected).float().mean() > 0.999  # but for what rounding makes equal
        assert not torch.equal(got.labels, base.labels)


def test_scores_of_the_propensity_form_are_useful_for_thresholds():
    inverse = torch.tensor([1.5, 3.0, 7.0])
    top = ranking([[1.0, 0.5, 0.001]], [[2, 0, 1]])
    same = by_propensity(top, inverse, 0.0)
    assert torch.allclose(same.scores, top.scores)
    got = by_propensity(top, inverse, 0.5)
    assert got.labels.tolist() == [[2, 0, 1]]
    assert got.scores[0, 0] == 1
    assert got.scores[0, 2].item() == pytest.approx(0.001 * 3**0.5, rel=1e-2)


def test_the_inverse_propensity_is_the_logarithm_of_all_documents_for_a_label_with_one():
    space = LabelSpace(["a", "b", "c", "d"], [900, 100, 10, 1], 1000, vocab_size=3)
    inverse = build(space).inverse_propensity
    assert inverse[-1].item() == pytest.approx(6.907755)
    assert (inverse.diff() > 0).all()
    assert 1 < inverse[0] < 1.3


def test_parts_are_measured_beside():
    space, _, scores = long_tail(documents=50)
    head = build(space, exponent=0.5)
    found = head.rankings(wrap(scores), 5)
    assert list(found) == ["", "inner"]
    assert torch.equal(found["inner"].labels, head.inner.rank(wrap(scores), 5).labels)
    assert torch.equal(found[""].labels, head.rank(wrap(scores), 5).labels)
    assert list(build(space, measure_inner=False).rankings(wrap(scores), 5)) == [""]
    outer = build(space, lambda dim, space: build(space, exponent=0.5))
    assert list(outer.rankings(wrap(scores), 5)) == ["", "inner", "inner/inner"]


def test_many_labels_make_a_narrow_network_with_sparse_gradients():
    space = LabelSpace([""] * 50_000, [1] * 50_000, 90_000, vocab_size=3)
    head = build(space, width=None)
    assert head.net.first[0].weight.shape == (50_000, 64)
    assert head.net.first[0].sparse
    assert head.net.second[0].sparse
    assert build(long_tail(documents=50)[0], width=None).net.first[0].weight.shape == (40, 256)


# --- training


@pytest.mark.parametrize("on", ["probabilities", "logits"])
@pytest.mark.parametrize("seed", [0, 1])
def test_training_brings_rare_labels_of_new_documents_forward(on, seed):
    space, (scores, targets), (others, truth) = halves(seed)
    head = build(space, Folded, on=on, ranknet=QUICK)
    before = measured(space, head.rank(wrap(others), 40), truth)
    head.train_ranknet(Context(scores, targets))
    after = measured(space, head.rank(wrap(others), 40), truth)
    assert after["PSP@1"] > before["PSP@1"] + 0.04
    assert after["P@1"] > before["P@1"] - 0.08  # the price
    assert head.inner.asked == (3, 40)


def test_it_learns_the_same_from_validation_documents_and_logs_how_it_went():
    space, (scores, targets), _ = halves()
    made = []
    for inner, how in ((Folded, "out_of_fold"), (Given, "validation")):
        head, context = build(space, inner, ranknet=RankNetTraining(steps=20, look_every=10)), Context(scores, targets)
        assert head.scores == how
        head.train_ranknet(context)
        assert {
            "ranknet/loss",
            "ranknet/population",
            "ranknet/margin",
            "ranknet/documents",
            "ranknet/best_look",
        } == set(context.logged)
        made.append(head)
    assert torch.equal(made[0].net.second[0].weight, made[1].net.second[0].weight)
    assert made[0].is_trained


def test_held_out_documents_are_those_that_no_stage_trains_on():
    space, (scores, targets), _ = halves()
    head, context = build(space, scores="held_out", ranknet=RankNetTraining(steps=10)), Context(scores, targets)
    with pytest.raises(UserError, match="no stage has left out documents"):
        head.train_ranknet(context)
    base = head.base_documents(targets, context.seed)
    head.train_ranknet(context)
    assert len(context.rows) == 80
    assert sorted(torch.cat([base, context.rows]).tolist()) == list(range(800))
    assert not torch.equal(base, head.base_documents(targets, context.seed + 1))
    # the same from the same documents, given as validation documents
    other = build(space, scores="validation", ranknet=RankNetTraining(steps=10))
    other.train_ranknet(Context(scores[context.rows], targets.take(context.rows)))
    assert torch.equal(head.net.second[0].weight, other.net.second[0].weight)


def test_processes_put_their_scores_together():
    space, (scores, targets), _ = halves()
    alone, first, second = (build(space, ranknet=RankNetTraining(steps=10)) for _ in range(3))
    one = Context(scores, targets)
    alone.train_ranknet(one)
    gathered = alone._collect(one, one.val_features(), torch.arange(800))
    halves_ = [Context(scores, targets, share=(i, 2)) for i in range(2)]
    mine = [
        head._collect(ctx, ctx.val_features(), torch.arange(800))
        for head, ctx in zip((first, second), halves_, strict=True)
    ]
    halves_[0].others = list(halves_[1].sums)
    both = first._collect(halves_[0], halves_[0].val_features(), torch.arange(800))
    assert torch.equal(both.labels, gathered.labels)
    assert torch.equal(both.scores, gathered.scores)
    assert (mine[0].labels == -1).any()


# --- the exponent


def test_measures_are_those_of_the_metrics():
    space, targets, scores = long_tail(documents=60, unseen=5)
    lists = [row.tolist() for row in targets.indices.split(targets.counts.tolist())]
    lists[7] = []  # a document without labels counts nowhere
    targets, top = Targets.from_lists(lists), Given(40, space).rank(wrap(scores), 10)
    expected, weights = measured(space, top, targets), space.inverse_propensity()
    hits = relevant(top.labels, targets)
    for name in ("P@1", "P@2", "P@3", "P@5", "PSP@1", "PSP@2", "PSP@3", "PSP@5"):
        measure = Measure.parse(name, "gain")
        got = measure.reached(top.labels, hits, weights) / measure.possible(targets, weights)
        assert float(got) == pytest.approx(expected[name], abs=1e-12)


def test_relevant_labels_are_found_across_blocks_of_documents(monkeypatch):
    monkeypatch.setattr("heads.measures.STEP", 7)
    space, targets, scores = long_tail(documents=60)
    labels = Given(40, space).rank(wrap(scores), 10).labels
    labels[3, 4:] = -1
    expected = targets.dense(40).bool().gather(1, labels.clamp_min(0)) & (labels >= 0)
    assert torch.equal(relevant(labels, targets), expected)
    assert not relevant(labels, Targets.from_lists([[]] * 60)).any()


def test_the_exponent_gains_most_of_those_that_cost_no_more_than_allowed():
    gain, keep = torch.tensor([0.5, 0.6, 0.7, 0.8, 0.8]), torch.tensor([0.9, 0.897, 0.896, 0.88, 0.95])
    assert choice(gain, keep, 0.005) == 4
    assert choice(gain, torch.tensor([0.9, 0.897, 0.896, 0.88, 0.1]), 0.005) == 2
    assert choice(gain, torch.tensor([0.9, 0.897, 0.896, 0.88, 0.1]), 0.0) == 0
    assert choice(torch.tensor([0.5, 0.7, 0.7]), torch.ones(3), 0.0) == 1  # of equals the smallest


@pytest.mark.parametrize("allowed", [0.0, 0.005, 0.05, 1.0])
def test_the_chosen_exponent_is_the_best_of_a_slow_search(allowed):
    space, targets, scores = long_tail(documents=300, unseen=5)
    head, context = build(space, allowed_loss=allowed), Context(scores, targets)
    head.choose_exponent(context)
    slow = []
    for power in GRID:
        found = measured(space, build(space, exponent=power).rank(wrap(scores), 40), targets)
        slow.append((found["PSP@5"], found["P@1"]))
    kept = [gain for gain, keep in slow if keep >= slow[0][1] - allowed - 1e-9]
    at = GRID.index(head.power)
    assert slow[at][0] == pytest.approx(max(kept), abs=1e-9)
    assert slow[at][1] >= slow[0][1] - allowed - 1e-9
    after = {"PSP@5": slow[at][0], "P@1": slow[at][1]}
    for name, first in (("PSP@5", slow[0][0]), ("P@1", slow[0][1])):
        assert context.logged[f"rerank/{name}/before"] == pytest.approx(first)
        assert context.logged[f"rerank/{name}/after"] == pytest.approx(after[name])
    assert context.logged["rerank/exponent"] == head.power


def test_propensity_score_precision_of_new_documents_does_not_fall():
    for seed in range(3):
        space, (scores, targets), (others, truth) = halves(seed)
        head = build(space, allowed_loss=0.02, gain="PSP@1")
        before = measured(space, head.rank(wrap(others), 40), truth)
        head.choose_exponent(Context(scores, targets))
        after = measured(space, head.rank(wrap(others), 40), truth)
        assert head.power > 0
        assert after["PSP@1"] >= before["PSP@1"]


def test_two_processes_choose_what_one_does():
    space, (scores, targets), _ = halves()
    heads = [build(space) for _ in range(3)]
    alone, *shares = (Context(scores, targets, share=share) for share in ((0, 1), (0, 2), (1, 2)))
    for head, context in zip(heads, (alone, *shares), strict=True):
        head.choose_exponent(context)
    shares[0].others = list(shares[1].sums)
    heads[1].choose_exponent(shares[0])
    assert heads[1].power == heads[0].power
    assert torch.allclose(alone.sums[0], shares[0].sums[0] + shares[1].sums[0])


def test_both_forms_together_go_by_the_networks_scores():
    space, (scores, targets), _ = halves()
    head = build(space, Folded, ranknet=QUICK, allowed_loss=1.0)
    context = Context(scores, targets)
    head.train_ranknet(context)
    only = measured(space, head.rank(wrap(scores), 40), targets)
    head.choose_exponent(context)
    assert context.logged["rerank/PSP@5/before"] == pytest.approx(only["PSP@5"], abs=1e-6)
    assert context.logged["rerank/PSP@5/after"] >= only["PSP@5"] - 1e-9


# --- checkpoints, plans and later labels


def test_a_checkpoint_keeps_both():
    space, (scores, targets), _ = halves()
    head, other = build(space, Folded, ranknet=RankNetTraining(steps=10)), build(space, Folded, seed=1)
    context = Context(scores, targets)
    head.train_ranknet(context)
    head.exponent.fill_(0.35)
    head._note_progress()
    other.load_state_dict(head.state_dict())
    assert other.power == 0.35
    for got, expected in zip(*(vars(h.rank(wrap(scores), 9)).values() for h in (other, head)), strict=True):
        assert torch.equal(got, expected)
    narrow = build(space, Folded, width=8)
    narrow.load_state_dict({n: v for n, v in head.state_dict().items() if "net" not in n}, strict=False)
    assert not narrow.is_trained  # another network was not taken over


@pytest.mark.parametrize(
    ("settings", "plan", "message"),
    [
        ({}, ["inner.fit"], "would change nothing"),
        ({}, ["choose_exponent", "train_ranknet"], "train_ranknet and choose_exponent, in this order"),
        ({}, ["train_ranknet", "inner.fit"], "train the inner head, then"),
        ({"exponent": 0.5}, ["choose_exponent"], "is fixed"),
        ({"blocks": 0}, ["train_ranknet"], "has no network to train"),
        ({"scores": "out_of_fold"}, ["train_ranknet"], "Given has no out_of_fold scores"),
        ({"scores": "held_out", "inner": Folded}, ["train_ranknet"], "fitted to all training documents"),
    ],
)
def test_plans_that_make_no_sense_are_refused(settings, plan, message):
    with pytest.raises(UserError, match=message):
        build(long_tail(documents=50)[0], **settings).check_plan(plan)


def test_plans_that_make_sense():
    space = long_tail(documents=50)[0]
    build(space).check_plan(["inner.fit", "train_ranknet", "choose_exponent"])
    build(space, blocks=0).check_plan(["choose_exponent"])
    build(space, exponent=0.3).check_plan([])
    build(space, Folded, scores="out_of_fold").check_plan(["inner.fit", "train_ranknet"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gain": "nDCG@5"}, r"--model\.head\.gain=nDCG@5 cannot be measured here"),
        ({"keep": "P@0"}, r"--model\.head\.keep=P@0"),
        ({"held_out": 1.0}, "not between 0 and 1"),
        ({"candidates": 0}, "too low"),
        ({"folds": 1}, "too low"),
        ({"exponent": -0.1}, "too low"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, message):
    with pytest.raises(UserError, match=message):
        build(long_tail(documents=50)[0], **settings)


def test_loss_needs_and_transitions_are_the_inner_heads():
    space, targets, pooled = httn.corpus()
    torch.manual_seed(0)
    head = Rerank(httn.DIM, space, lambda dim, space: PrototypeTransfer(dim, space, hidden=5, draws=6, tail_count=5))
    assert head.pending == ("inner.transfer",)
    features = wrap(pooled)
    assert torch.equal(head.loss(features, targets, "main")["loss"], head.inner.loss(features, targets, "main")["loss"])
    layered = Rerank(4, space, lambda dim, space: Linear(dim, space, layers=3))
    assert layered.needs_layers == 3
    assert [name for name, p in layered.named_parameters() if p.requires_grad] == [
        "inner.classifier.weight",
        "inner.classifier.bias",
    ]


def test_labels_that_come_later_are_passed_on():
    space, targets, pooled = httn.corpus()
    torch.manual_seed(0)
    head = Rerank(httn.DIM, space, lambda dim, space: PrototypeTransfer(dim, space, hidden=5, draws=6, tail_count=5))
    head.inner.transfer(httn.Context(pooled, targets))
    torch.nn.init.normal_(head.net.second[0].weight)
    head.trained.fill_(True)
    head.exponent.fill_(0.5)
    head._note_progress()
    before = head.reranked(head.inner.rank(wrap(pooled), 7), 7)
    grown = space.grown({"new": 2})
    head.learn_labels(grown, [(wrap(pooled[:2]), Targets.from_lists([[7], [7]]))])
    after = head.rank(wrap(pooled), 8)
    assert (after.labels == 7).any()
    kept = [[label for label in row if label != 7] for row in after.labels.tolist()]
    assert kept == before.labels.tolist()
    assert len(head.inverse_propensity) == head.num_labels == 8
    other = Rerank(httn.DIM, grown, lambda dim, space: PrototypeTransfer(dim, space, hidden=5, draws=6, tail_count=5))
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.rank(wrap(pooled), 8).labels, after.labels)


def test_the_network_keeps_its_width_when_added_labels_make_them_many(monkeypatch):
    monkeypatch.setattr("heads.rerank.MANY", 41)
    space, _, _ = long_tail(documents=50)
    grown = space.grown({"new": 2})
    assert (space.num_labels, grown.num_labels) == (40, 41)
    tables = [build(one, width=None).net.first[0].weight.shape for one in (space, grown)]
    assert tables == [(40, 256), (41, 256)]


def test_a_head_that_cannot_learn_labels_says_so():
    space, _, _ = long_tail(documents=50)
    with pytest.raises(UserError, match="Given cannot make a classifier"):
        build(space).learn_labels(space, [])


def test_rankings_have_the_width_asked_for():
    space, _, scores = long_tail(documents=20)
    got = build(space, exponent=0.5).rank(wrap(scores), 60)
    assert isinstance(got, Ranking)
    assert got.labels.shape == (20, 60)
    assert (got.labels[:, 40:] == -1).all()
