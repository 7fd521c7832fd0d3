"""Rerank: the candidates of another head in a new order, and what that costs."""

import pytest
import torch

from datamodules.batch import Targets
from heads import Linear, PrototypeTransfer, Rerank
from heads.tail.propensity import GRID, best_exponent, by_propensity
from heads.tail.rankings import metric_sums, parse_metric, relevant
from heads.tail.ranknet_training import RankNetTraining
from tests.support import httn
from tests.support.documents import label_space
from tests.support.errors import raises
from tests.support.httn import wrap
from tests.support.rerank import Folded, Given, build, long_tail, ranking, transition
from zoo.core.errors import UserError
from zoo.training.ranking_metrics import RankingMetrics

QUICK = RankNetTraining(steps=250, batch_size=128, lr=1e-3, margin_weight=5, allowed_loss=0.01)


def measured(space, ranking, targets):
    metrics = RankingMetrics(space, ks=(1, 2, 3, 5))
    metrics.update(ranking.scores, ranking.labels, targets)
    return {name: float(value) for name, value in metrics.compute().items()}


def halves(seed=0, unseen=0):
    """Scores and labels of 800 training and 400 test documents."""
    space, targets, scores = long_tail(documents=1200, seed=seed, unseen=unseen)
    parts = (torch.arange(800), torch.arange(800, 1200))
    return space, *((scores[rows], targets.take(rows)) for rows in parts)


SCALES = [("log_probabilities", 0.5), ("logits", 0.5), ("logits", None), ("probabilities", None)]


@pytest.mark.parametrize(("scale", "learned"), SCALES)
@pytest.mark.parametrize("k", [1, 5, 40])
def test_rankings_start_as_those_of_the_inner_head(scale, learned, k):
    space, _, scores = long_tail(documents=50)
    for candidates in (10, 100):
        head = build(space, scale=scale, learned_exponent=learned, candidates=candidates, blocks=2)
        got, expected = head.rank(wrap(scores), k), head.inner.rank(wrap(scores), k)
        assert torch.equal(got.labels, expected.labels)
        assert torch.equal(got.scores, expected.scores)


def test_certain_labels_keep_their_order():
    space, _, _ = long_tail(documents=50)
    head = build(space, exponent=0.5, learned_exponent=None)
    head.power, head.is_trained = 0.0, True
    got = head.reranked(ranking([[1.0, 1.0, 1.0]], [[7, 3, 5]]), 3)
    assert got.labels.tolist() == [[7, 3, 5]]  # by logits they differed


def test_labels_come_from_the_candidates_only():
    space, (scores, targets), _ = halves()
    head = build(space, Folded, candidates=6, ranknet=QUICK)
    head.train_ranknet(transition(scores, targets))
    head.exponent.fill_(1)
    head._sync_flags()
    got, base = head.rank(wrap(scores), 6), head.inner.rank(wrap(scores), 6)
    assert torch.equal(got.labels.sort().values, base.labels.sort().values)
    assert not torch.equal(got.labels, base.labels)
    assert (got.scores.diff(dim=1) <= 0).all()
    assert ((got.scores >= 0) & (got.scores <= 1)).all()


def test_labels_after_the_candidates_follow_them():
    """The network sees the same candidates, however many labels are asked for."""
    space, (scores, targets), _ = halves()
    head = build(space, Folded, candidates=6, ranknet=QUICK)
    head.train_ranknet(transition(scores, targets))
    few, many = head.rank(wrap(scores), 4), head.rank(wrap(scores), 12)
    assert torch.equal(few.labels, many.labels[:, :4])
    assert torch.equal(many.labels[:, 6:], head.inner.rank(wrap(scores), 12).labels[:, 6:])
    assert (many.scores.diff(dim=1) <= 0).all()


def test_short_rankings_stay_short():
    space, _, _ = long_tail(documents=50)
    head = build(space, exponent=1.0)
    torch.nn.init.normal_(head.net.second[0].weight)
    head.is_trained = True
    for scale in ("log_probabilities", "probabilities", "logits"):
        head.scale = head.net.scale = scale
        got = head.reranked(ranking([[0.6, 0.1, 0.0, 0.0]], [[4, 30, -1, -1]]), 4)
        assert sorted(got.labels[0, :2].tolist()) == [4, 30]
        assert got.labels[0, 2:].tolist() == [-1, -1]
        assert got.scores[0, 2:].tolist() == [0, 0]


def test_the_propensity_form_ranks_by_weighted_scores():
    space, _, scores = long_tail(documents=50)
    inverse, base = space.inverse_propensity(), Given(40, space).rank(wrap(scores), 40)
    for power in (0.3, 1.0):
        got = build(space, exponent=power).rank(wrap(scores), 40)
        expected = (scores.double() * inverse**power).argsort(dim=1, descending=True, stable=True)
        assert (got.labels == expected).float().mean() > 0.999  # but for what rounding makes equal
        assert not torch.equal(got.labels, base.labels)


@pytest.mark.parametrize(
    "settings",
    [
        {"blocks": 0, "learned_exponent": 1.0},
        {"scale": "probabilities", "network": "full", "learned_exponent": None},
        {"blocks": 0, "learned_exponent": None, "exponent": 1.0},
    ],
)
def test_three_forms_of_weighting_by_propensity_agree(settings):
    """The exponent a = 1, the diagonal r - 1 before training, and the fixed exponent 1 all rank by r f."""
    space, _, scores = long_tail(documents=50)
    head = build(space, **settings)
    head.is_trained = "exponent" not in settings
    got = head.rank(wrap(scores), 40)
    expected = build(space, exponent=1.0).rank(wrap(scores), 40)
    assert (got.labels == expected.labels).float().mean() > 0.999  # but for what rounding makes equal
    torch.testing.assert_close(got.scores, expected.scores, atol=1e-5, rtol=1e-4)


def test_scores_of_the_propensity_form_fit_thresholds():
    inverse = torch.tensor([1.5, 3.0, 7.0])
    top = ranking([[1.0, 0.5, 0.001]], [[2, 0, 1]])
    same = by_propensity(top, inverse, 0.0)
    assert torch.allclose(same.scores, top.scores)
    got = by_propensity(top, inverse, 0.5)
    assert got.labels.tolist() == [[2, 0, 1]]
    assert got.scores[0, 0] == 1
    assert got.scores[0, 2].item() == pytest.approx(0.001 * 3**0.5, rel=1e-2)


def test_rankings_of_inner_heads():
    space, _, scores = long_tail(documents=50)
    head = build(space, exponent=0.5)
    found = head.rankings(wrap(scores), 5)
    assert list(found) == ["", "inner"]
    assert torch.equal(found["inner"].labels, head.inner.rank(wrap(scores), 5).labels)
    assert torch.equal(found[""].labels, head.rank(wrap(scores), 5).labels)
    assert list(build(space, measure_inner=False).rankings(wrap(scores), 5)) == [""]
    outer = build(space, lambda dim, space: build(space, exponent=0.5))
    assert list(outer.rankings(wrap(scores), 5)) == ["", "inner", "inner/inner"]


def test_many_labels_make_a_narrow_sparse_network():
    space = label_space([1] * 50_000, 90_000)
    head = build(space, width=None)
    assert head.net.first[0].weight.shape == (50_000, 64)
    assert head.net.first[0].sparse
    assert head.net.second[0].sparse
    assert build(long_tail(documents=50)[0], width=None).net.first[0].weight.shape == (40, 256)


@pytest.mark.parametrize(("scale", "learned"), SCALES)
def test_training_raises_rare_labels_of_new_documents(scale, learned):
    space, (scores, targets), (others, truth) = halves()
    head = build(space, Folded, scale=scale, learned_exponent=learned, ranknet=QUICK)
    before = measured(space, head.rank(wrap(others), 40), truth)
    head.train_ranknet(transition(scores, targets))
    after = measured(space, head.rank(wrap(others), 40), truth)
    assert after["PSP@1"] > before["PSP@1"] + 0.04
    assert after["P@1"] > before["P@1"] - 0.08  # the price
    assert head.inner.asked == (3, 40)


def test_out_of_fold_and_validation_scores_are_equivalent():
    space, (scores, targets), _ = halves()
    made = []
    for inner, how in ((Folded, "out_of_fold"), (Given, "validation")):
        head = build(space, inner, ranknet=RankNetTraining(steps=20, look_every=10))
        context = transition(scores, targets)
        assert head.scores == how
        head.train_ranknet(context)
        names = ("loss", "population", "margin", "documents", "best_look", "exponent")
        assert set(context.logged) == {f"ranknet/{name}" for name in names}
        made.append(head)
    assert torch.equal(made[0].net.second[0].weight, made[1].net.second[0].weight)
    assert made[0].is_trained


def test_held_out_documents_are_never_trained_on():
    space, (scores, targets), _ = halves()
    head, context = build(space, scores="held_out", ranknet=RankNetTraining(steps=10)), transition(scores, targets)
    with raises(UserError, "`scores=held_out`", "base_documents"):
        head.train_ranknet(context)
    base = head.base_documents(targets, context.seed)
    head.train_ranknet(context)
    assert len(context.passes[0]) == 80
    assert sorted(torch.cat([base, context.passes[0]]).tolist()) == list(range(800))
    assert not torch.equal(base, head.base_documents(targets, context.seed + 1))
    # the same from the same documents, given as validation documents
    other = build(space, scores="validation", ranknet=RankNetTraining(steps=10))
    other.train_ranknet(transition(scores[context.passes[0]], targets.take(context.passes[0])))
    assert torch.equal(head.net.second[0].weight, other.net.second[0].weight)


def test_processes_gather_their_scores():
    space, (scores, targets), _ = halves()
    alone, first, second = (build(space, ranknet=RankNetTraining(steps=10)) for _ in range(3))
    one = transition(scores, targets)
    alone.train_ranknet(one)
    gathered = alone._collect(one, one.val_features(), torch.arange(800))
    halves_ = [transition(scores, targets, share=(i, 2)) for i in range(2)]
    heads = zip((first, second), halves_, strict=True)
    mine = [head._collect(ctx, ctx.val_features(), torch.arange(800)) for head, ctx in heads]
    halves_[0].others = list(halves_[1].sums)
    both = first._collect(halves_[0], halves_[0].val_features(), torch.arange(800))
    assert torch.equal(both.labels, gathered.labels)
    assert torch.equal(both.scores, gathered.scores)
    assert (mine[0].labels == -1).any()


def test_measures_equal_the_metrics():
    space, targets, scores = long_tail(documents=60, unseen=5)
    lists = [row.tolist() for row in targets.indices.split(targets.counts.tolist())]
    lists[7] = []  # a document without labels counts nowhere
    targets, top = Targets.from_lists(lists), Given(40, space).rank(wrap(scores), 10)
    expected, weights = measured(space, top, targets), space.inverse_propensity().numpy()
    for name in ("P@1", "P@3", "P@5", "PSP@1", "PSP@3", "PSP@5", "nDCG@5"):
        ((reached, possible),) = metric_sums(top.labels, targets, weights, (parse_metric(name, "gain"),))
        assert reached / possible == pytest.approx(expected[name], abs=1e-12)


def test_relevant_labels_across_blocks(monkeypatch):
    monkeypatch.setattr("heads.tail.rankings.STEP", 7)
    space, targets, scores = long_tail(documents=60)
    labels = Given(40, space).rank(wrap(scores), 10).labels
    labels[3, 4:] = -1
    expected = targets.dense(40).bool().gather(1, labels.clamp_min(0)) & (labels >= 0)
    assert torch.equal(relevant(labels, targets), expected)
    assert not relevant(labels, Targets.from_lists([[]] * 60)).any()


def test_the_exponent_with_the_largest_gain_at_the_allowed_loss():
    gain, keep = torch.tensor([0.5, 0.6, 0.7, 0.8, 0.8]), torch.tensor([0.9, 0.897, 0.896, 0.88, 0.95])
    assert best_exponent(gain, keep, 0.005) == 4
    assert best_exponent(gain, torch.tensor([0.9, 0.897, 0.896, 0.88, 0.1]), 0.005) == 2
    assert best_exponent(gain, torch.tensor([0.9, 0.897, 0.896, 0.88, 0.1]), 0.0) == 0
    assert best_exponent(torch.tensor([0.5, 0.7, 0.7]), torch.ones(3), 0.0) == 1  # of equals the smallest


@pytest.mark.parametrize("allowed", [0.0, 0.05, 1.0])
def test_the_exponent_equals_that_of_a_slow_search(allowed):
    space, targets, scores = long_tail(documents=300, unseen=5)
    head, context = build(space, allowed_loss=allowed), transition(scores, targets)
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


def test_two_processes_choose_the_same_exponent():
    space, (scores, targets), _ = halves()
    heads = [build(space) for _ in range(3)]
    alone, *shares = (transition(scores, targets, share=share) for share in ((0, 1), (0, 2), (1, 2)))
    for head, context in zip(heads, (alone, *shares), strict=True):
        head.choose_exponent(context)
    shares[0].others = list(shares[1].sums)
    heads[1].choose_exponent(shares[0])
    assert heads[1].power == heads[0].power
    assert torch.allclose(alone.sums[0], shares[0].sums[0] + shares[1].sums[0])


def test_the_exponent_uses_the_scores_of_the_network():
    space, (scores, targets), _ = halves()
    head = build(space, Folded, ranknet=QUICK, allowed_loss=1.0)
    context = transition(scores, targets)
    head.train_ranknet(context)
    only = measured(space, head.rank(wrap(scores), 40), targets)
    head.choose_exponent(context)
    assert context.logged["rerank/PSP@5/before"] == pytest.approx(only["PSP@5"], abs=1e-6)
    assert context.logged["rerank/PSP@5/after"] >= only["PSP@5"] - 1e-9


def test_checkpoints_keep_network_and_exponent():
    space, (scores, targets), _ = halves()
    head, other = build(space, Folded, ranknet=RankNetTraining(steps=10)), build(space, Folded, seed=1)
    context = transition(scores, targets)
    head.train_ranknet(context)
    head.exponent.fill_(0.35)
    head._sync_flags()
    other.load_state_dict(head.state_dict())
    assert other.power == 0.35
    for got, expected in zip(*(vars(h.rank(wrap(scores), 9)).values() for h in (other, head)), strict=True):
        assert torch.equal(got, expected)
    narrow = build(space, Folded, width=8)
    narrow.load_state_dict({n: v for n, v in head.state_dict().items() if "net" not in n}, strict=False)
    assert not narrow.is_trained  # another network was not taken over


def test_checkpoints_without_an_exponent_have_0():
    space, (scores, targets), _ = halves()
    head = build(space, Folded, scale="logits", learned_exponent=None, ranknet=RankNetTraining(steps=10))
    head.train_ranknet(transition(scores, targets))
    other = build(space, Folded, scale="logits", seed=1)
    other.load_state_dict(head.state_dict())
    assert other.is_trained
    assert torch.equal(other.rank(wrap(scores), 9).scores, head.rank(wrap(scores), 9).scores)


@pytest.mark.parametrize(
    ("settings", "plan", "names"),
    [
        ({}, ["inner.fit"], ["train_ranknet", "choose_exponent"]),
        ({}, ["choose_exponent", "train_ranknet"], ["train_ranknet", "choose_exponent"]),
        ({}, ["train_ranknet", "inner.fit"], ["train_ranknet"]),
        ({"exponent": 0.5}, ["choose_exponent"], ["exponent", 0.5]),
        ({"blocks": 0, "learned_exponent": None}, ["train_ranknet"], ["train_ranknet", "blocks", "learned_exponent"]),
        ({"scores": "out_of_fold"}, ["train_ranknet"], ["Given", "out_of_fold"]),
        ({"scores": "held_out", "inner": Folded}, ["train_ranknet"], ["Folded"]),
    ],
)
def test_invalid_plans_are_rejected(settings, plan, names):
    with raises(UserError, *names):
        build(long_tail(documents=50)[0], **settings).check_plan(plan)


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"scale": "probabilities"}, ["`learned_exponent=null`"]),
        ({"network": "full"}, ["`network=full`", "`scale=probabilities`"]),
        ({"gain": "macroF@5"}, ["`gain=macroF@5`"]),
        ({"keep": "P@0"}, ["`keep=P@0`"]),
        ({"held_out": 1.0}, ["`held_out=1.0`"]),
        ({"candidates": 0}, ["`candidates=0`"]),
        ({"folds": 1}, ["`folds=1`"]),
        ({"exponent": -0.1}, ["`exponent=-0.1`"]),
    ],
)
def test_invalid_settings_are_rejected(settings, names):
    with raises(UserError, *names):
        build(long_tail(documents=50)[0], **settings)


def test_loss_and_transitions_are_those_of_the_inner_head():
    space, targets, pooled = httn.corpus()
    torch.manual_seed(0)
    head = Rerank(httn.DIM, space, lambda dim, space: PrototypeTransfer(dim, space, hidden=5, draws=6, tail_count=5))
    assert head.pending == ("inner.transfer",)
    features = wrap(pooled)
    assert torch.equal(head.loss(features, targets, "main")["loss"], head.inner.loss(features, targets, "main")["loss"])
    layered = Rerank(4, space, lambda dim, space: Linear(dim, space, layers=3))
    assert layered.needs_layers == 3
    trained = [name for name, p in layered.named_parameters() if p.requires_grad]
    assert trained == ["inner.classifier.weight", "inner.classifier.bias"]


def test_new_labels_are_passed_on():
    space, targets, pooled = httn.corpus()
    torch.manual_seed(0)
    head = Rerank(httn.DIM, space, lambda dim, space: PrototypeTransfer(dim, space, hidden=5, draws=6, tail_count=5))
    head.inner.transfer(httn.transition(pooled, targets))
    torch.nn.init.normal_(head.net.second[0].weight)
    head.trained.fill_(True)
    head.exponent.fill_(0.5)
    head._sync_flags()
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


def test_the_network_keeps_its_width_when_labels_are_added(monkeypatch):
    monkeypatch.setattr("heads.tail.reranker.MANY", 41)
    space, _, _ = long_tail(documents=50)
    grown = space.grown({"new": 2})
    assert (space.num_labels, grown.num_labels) == (40, 41)
    tables = [build(one, width=None).net.first[0].weight.shape for one in (space, grown)]
    assert tables == [(40, 256), (41, 256)]


def test_heads_that_cannot_learn_labels_are_rejected():
    space, _, _ = long_tail(documents=50)
    with raises(UserError, "Given"):
        build(space).learn_labels(space, [])
