"""Blend: ranking by shared trees, where they learn from, and how they are stored."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.ensemble import HistGradientBoostingClassifier

from heads import Blend, Linear, OneVsRestSvm, Parabel
from heads.base import Ranking
from heads.blend import Counts, Neighbours, Scores, boosting
from heads.blend.boosting import BoostedTrees, Boosting, exported
from heads.blend.candidate_pairs import Pairs, collect, examples
from heads.blend.perceptron import Network, Perceptron
from heads.engines.linear_engine import fold_numbers
from heads.tail.rankings import relevant
from tests.support.blend import LABELS, LEAD, Corpus
from tests.support.errors import raises
from tests.support.transitions import Recorded
from zoo.core.errors import UserError

SMALL = Boosting(trees=30, least=5, leaves=6, lr=0.1)
MEMBERS = {"svm": partial(OneVsRestSvm, min_documents=1), "trees_of_labels": partial(Parabel, max_leaf=4)}
GROUPS = [Scores, Counts, partial(Neighbours, lead=LEAD)]


def build(space, members=None, features=None, **settings):
    return Blend(1, space, members or MEMBERS, features, **{"ranker": SMALL, "candidates": 8} | settings)


@pytest.fixture(scope="module")
def splits():
    return Corpus(documents=300, seed=0), Corpus(documents=300, seed=1), Corpus(documents=300, seed=2)


@pytest.fixture(scope="module")
def fitted(splits):
    train, val, _ = splits
    head, context = build(train.space, scores="validation"), train.context(val)
    for name in head.pending:
        member, method = name.split(".")
        getattr(getattr(head, member), method)(context)
    head.fit_ranker(context)
    head.logged = context.logged
    return head


# --- trees


def noisy_pairs(size=2000, features=5, missing=0.2):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(size, features)).astype(np.float32)
    inputs[:, 1] = inputs[:, 1].round(1)  # repeated values
    chance = 1 / (1 + np.exp(-(inputs[:, 0] + inputs[:, 1] * (inputs[:, 2] > 0))))
    inputs[random.random(inputs.shape) < missing] = np.nan
    return inputs, (random.random(size) < chance).astype(np.float32)


@pytest.mark.parametrize("missing", [0.0, 0.3])
def test_exported_trees_predict_what_scikit_learn_predicts(missing):
    inputs, hits = noisy_pairs(missing=missing)
    model = HistGradientBoostingClassifier(max_iter=30, max_leaf_nodes=9, random_state=0).fit(inputs, hits)
    trees = BoostedTrees(inputs.shape[1], SMALL)
    trees.set_extra_state(exported(model, inputs.shape[1]))
    new, _ = noisy_pairs(500, missing=0.1)
    got = trees(torch.from_numpy(new)).sigmoid().numpy()
    assert np.abs(got - model.predict_proba(new)[:, 1]).max() < 1e-6
    assert trees.importances().sum() == pytest.approx(1)
    assert trees.importances().argmax() in (0, 1)


def test_splits_by_missing_values_are_finite():
    inputs, hits = noisy_pairs(missing=0)
    inputs[:, 4] = np.where(hits > 0, 1, np.nan)  # only whether it is missing tells
    model = HistGradientBoostingClassifier(max_iter=5, random_state=0).fit(inputs, hits)
    trees = BoostedTrees(5, SMALL)
    trees.set_extra_state(exported(model, 5))
    assert np.isinf(np.concatenate([tree.nodes["num_threshold"] for (tree,) in model._predictors])).any()
    assert trees.nodes["threshold"].isfinite().all()
    got = trees(torch.from_numpy(inputs)).sigmoid().numpy()
    assert np.abs(got - model.predict_proba(inputs)[:, 1]).max() < 1e-6


def test_a_feature_without_values_is_ignored():
    inputs, hits = noisy_pairs(missing=0)
    inputs[:, 3] = np.nan
    trees = BoostedTrees(5, SMALL)
    trees.learn(inputs, hits)
    assert trees.importances()[3] == 0
    assert trees(torch.from_numpy(inputs)).isfinite().all()


def test_damaged_trees_are_refused():
    inputs, hits = noisy_pairs(200)
    trees = BoostedTrees(5, SMALL)
    trees.learn(inputs, hits)
    good = trees.get_extra_state()
    for name, value in (("left", 10**6), ("right", -1), ("feature", 5), ("roots", -1), ("value", torch.nan)):
        part = good[name].clone()
        part[0] = value
        with raises(UserError, "boosted trees"):
            BoostedTrees(5, SMALL).set_extra_state(good | {name: part})
    loop = good["left"].clone()
    loop[1] = 0  # the root again
    for damaged in (
        good | {"left": loop},
        good | {"roots": good["roots"][:0]},
        good | {"roots": good["roots"][:, None]},
        good | {"roots": good["roots"].repeat(2)},
        good | {"value": good["value"].clone().index_fill(0, torch.arange(2), 1e308)},
        {},
        good | {"gains": good["gains"][:2]},
    ):
        with raises(UserError, "boosted trees"):
            BoostedTrees(5, SMALL).set_extra_state(damaged)


def test_a_small_network_ranks_pairs_too(splits):
    inputs, hits = noisy_pairs(4000)
    new, right = noisy_pairs(4000)
    trees, network = BoostedTrees(5, SMALL), Perceptron(5, Network(hidden=(16,), epochs=15, step=0.01, batch=256))
    assert not network.fitted
    losses = []
    with torch.no_grad():
        for model in (trees, network):
            model.learn(inputs, hits)
            found = model(torch.from_numpy(new))
            losses.append(F.binary_cross_entropy_with_logits(found, torch.from_numpy(right).double()).item())
    assert losses[1] < 1.05 * losses[0]
    assert network.importances().sum() == pytest.approx(1)
    assert network.importances().argmax() in (0, 1)
    assert not any(parameter.requires_grad for parameter in network.parameters())
    alone = network(torch.from_numpy(new[7:8]))
    assert torch.equal(alone.float(), network(torch.from_numpy(new))[7:8].float())
    again = Perceptron(5, network.settings)
    with torch.no_grad():
        again.learn(inputs, hits)
    assert torch.equal(again(torch.from_numpy(new)), network(torch.from_numpy(new)))
    head = build(splits[0].space, {"one": Linear}, ranker=Network(hidden=[4], epochs=1))
    head.fit_ranker(splits[0].context(splits[1]))
    other = build(splits[0].space, {"one": Linear}, ranker=Network(hidden=[4], epochs=1))
    other.load_state_dict(head.state_dict())
    one, two = (each.rank(splits[2].features, 3) for each in (head, other))
    assert other.ready
    assert torch.equal(one.scores, two.scores)


# --- the head


def hits(ranking, targets):
    """Number of correct labels at 1, 2 and 3: less subject to chance than P@1, as Parabel cannot be seeded."""
    return sum(relevant(ranking.labels[:, :k], targets).sum().item() for k in (1, 2, 3))


def test_it_beats_its_members(fitted, splits):
    test = splits[2]
    found = fitted.rankings(test.features, 5)
    assert list(found) == ["", *MEMBERS]
    own, *members = (hits(ranking, test.targets) for ranking in found.values())
    assert own > max(members)


def test_scores_are_calibrated(fitted, splits):
    ranking = fitted.rank(splits[2].features, 8)
    known, hits = ranking.labels >= 0, relevant(ranking.labels, splits[2].targets)
    p, y = ranking.scores[known].double(), hits[known].double()
    place = (p * 10).long().clamp_max(9)
    gaps = torch.zeros(10, dtype=torch.float64).index_add(0, place, p - y)
    assert float(gaps.abs().sum() / len(p)) < 0.05


def test_a_ranking_does_not_depend_on_the_batch(fitted, splits):
    features = splits[2].features
    whole = fitted.rank(features, 6)
    for rows in (torch.tensor([7]), torch.arange(20, 29)):
        part = fitted.rank(features.take(rows), 6)
        assert torch.equal(part.labels, whole.labels[rows])
        assert torch.equal(part.scores, whole.scores[rows])


def test_trees_without_what_their_features_have_learned_are_refused(fitted):
    fitted.check_indices()
    neighbours = fitted.features.groups[2]
    state = neighbours.get_extra_state()
    neighbours.set_extra_state(None)
    with raises(UserError, "features"):
        fitted.check_indices()
    neighbours.set_extra_state(state)
    fitted.check_indices()


def test_the_state_dict_has_the_whole_head(fitted, splits, tmp_path):
    torch.save(fitted.state_dict(), tmp_path / "state.pt")
    other = build(splits[0].space)
    other.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert other.ready
    one, two = (head.rank(splits[2].features, 20) for head in (fitted, other))
    assert torch.equal(one.labels, two.labels)
    assert torch.equal(one.scores, two.scores)
    assert one.labels.shape == (300, 20)


def test_importances_are_logged_by_name(fitted):
    shares = fitted.importances()
    assert set(shares) == set(fitted.features.names)
    assert sum(shares.values()) == pytest.approx(1)
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    logged = {name: value for name, value in fitted.logged.items() if "importance" in name}
    assert logged == {f"blend/importance/{name}": share for name, share in shares.items()}


def test_an_exponent_promotes_rare_labels(fitted, splits):
    head = build(splits[0].space, exponent=1.0)
    head.load_state_dict(fitted.state_dict())
    plain, other = (part.rank(splits[2].features, 3) for part in (fitted, head))
    inverse = head.inverse_propensity
    assert inverse[other.labels[:, 0]].mean() > inverse[plain.labels[:, 0]].mean()
    assert (other.scores.diff(dim=1) <= 0).all()
    assert ((other.scores >= 0) & (other.scores <= 1)).all()


def test_before_the_ranker_is_fitted_trained_members_are_averaged(splits):
    train, _, test = splits
    head = build(train.space)
    assert head.pending == ("svm.fit", "trees_of_labels.fit")
    assert (head.rank(test.features, 3).labels == -1).all()
    head.svm.fit(train.context())
    got, expected = head.rank(test.features, 5), head.svm.rank(test.features, 5)
    assert torch.equal(got.labels, expected.labels)
    assert torch.allclose(got.scores, expected.scores, atol=1e-5)


# --- documents of the ranker


def test_out_of_fold_pairs_are_of_models_that_have_not_seen_the_document(splits):
    train = splits[0]
    members = {"svm": partial(OneVsRestSvm, min_documents=1)}
    head, context = build(train.space, members, GROUPS, folds=3), train.context(seed=4)
    head.scores = "out_of_fold"
    pairs, targets = head.training_pairs(context)
    assert pairs.inputs.shape == (300 * 8, len(head.features.names))
    assert torch.equal(targets.indices, train.targets.indices)
    fold_of, rows = fold_numbers(300, 3, 4), torch.arange(300)
    for fold in range(3):
        twin = build(train.space, members, GROUPS)
        seen, unseen = rows[fold_of != fold], rows[fold_of == fold]
        part = Corpus(documents=300, seed=0)
        part.keep(seen)
        twin.svm.fit(part.context())
        twin.features.learn(context, seen)
        features = train.features.take(unseen)
        width = pairs.inputs.shape[1]
        expected = collect(examples_of(twin, features), len(unseen), width, context, torch.device("cpu"))
        mine = pairs.take(unseen)
        assert torch.allclose(mine.inputs, expected.inputs, atol=1e-4)
        assert torch.equal(mine.hits, expected.hits)
        assert torch.equal(mine.labels, expected.labels)


def examples_of(head, features):
    batch = replace(features.batch, rows=torch.arange(len(features.pooled)))
    return examples(head.features, [(batch, [head.svm.rank(features, 8)])])


def test_where_the_ranker_learns_is_chosen_by_size_and_members(splits, monkeypatch):
    train, val, _ = splits
    context = train.context(val)
    assert build(train.space).source(context) == "out_of_fold"
    assert build(train.space, scores="validation").source(context) == "validation"
    assert build(train.space, {"one": Linear}).source(context) == "validation"
    monkeypatch.setattr("heads.blend.blend.ENOUGH", 100)
    assert build(train.space).source(context) == "validation"


def test_pairs_of_two_processes_are_those_of_one():
    sizes, values = torch.tensor([2, 0, 3, 1]), torch.arange(6.0)[:, None].repeat(1, 4)
    starts = sizes.cumsum(0) - sizes

    def share(rows):
        own = [values[starts[row] : starts[row] + sizes[row]] for row in rows.tolist()]
        return [(rows, sizes[rows], torch.cat(own))]

    pairs = collect(share(torch.tensor([2, 0])), 4, 2, Recorded(), torch.device("cpu"))
    counts = torch.tensor([0, 0, 0, 1])
    assert len(pairs.inputs) == 5
    table = torch.zeros(6, 4)
    table[5] = 5
    context = Recorded(others=[counts, table])
    pairs = collect(share(torch.tensor([2, 0, 1])), 4, 2, context, torch.device("cpu"))
    assert torch.equal(pairs.inputs, values[:, :2])
    assert torch.equal(pairs.labels, values[:, 2].long())
    assert torch.equal(pairs.hits, values[:, 3])
    assert torch.equal(pairs.sizes, sizes)


def test_chosen_documents_and_their_rankings_equal_a_loop():
    generator = torch.Generator().manual_seed(0)
    sizes = torch.tensor([3, 0, 2, 4])
    labels = torch.cat([torch.randperm(9, generator=generator)[:size] for size in sizes.tolist()])
    pairs = Pairs(torch.rand(9, 2), labels, torch.rand(9), sizes)
    chosen = pairs.take(torch.tensor([3, 1, 0]))
    rows = [5, 6, 7, 8, 0, 1, 2]
    assert torch.equal(chosen.inputs, pairs.inputs[rows])
    assert torch.equal(chosen.labels, pairs.labels[rows])
    logits = torch.randn(7, generator=generator)
    ranking = chosen.ranking(logits, 5)
    for doc, (start, end) in enumerate(((0, 4), (4, 4), (4, 7))):
        order = logits[start:end].argsort(descending=True)
        assert ranking.labels[doc].tolist() == [*chosen.labels[start:end][order].tolist(), *[-1] * (5 - end + start)]
        expected = [*logits[start:end][order].sigmoid().tolist(), *[0.0] * (5 - end + start)]
        assert ranking.scores[doc].tolist() == pytest.approx(expected)


def test_the_exponent_costs_at_most_what_is_allowed(splits, fitted):
    train, val, _ = splits
    powers = []
    for allowed in (0.0, 0.02, 1.0):
        head, context = build(train.space, scores="validation", exponent=None, allowed_loss=allowed), train.context(val)
        for name, member in head.inner_heads.items():
            member.load_state_dict(getattr(fitted, name).state_dict())
        head.fit_ranker(context)
        powers.append(float(head.power))
        assert context.logged["blend/exponent"] == powers[-1]
        assert context.logged["blend/P@1"] >= fitted.logged["blend/P@1"] - allowed - 1e-9
        assert context.logged["blend/P@5"] >= fitted.logged["blend/P@5"] - allowed - 1e-9
    assert powers == sorted(powers)
    assert powers[-1] == 1


def test_metrics_of_folds_are_those_of_documents_that_the_trees_have_not_seen(splits, fitted):
    best = fitted.rank(splits[2].features, 1).labels
    test = relevant(best, splits[2].targets).double().mean().item()
    assert fitted.logged["blend/P@1"] == pytest.approx(test, abs=0.1)


def test_only_the_first_process_fits_the_trees(splits):
    train, val, _ = splits
    head = build(train.space, {"one": Linear}, [Scores])
    head.fit_ranker(train.context(val, first=False))
    assert not head.trees.fitted


# --- mistakes


def test_plans(splits):
    head = build(splits[0].space)
    head.check_plan(["svm.fit", "trees_of_labels.fit", "fit_ranker"])
    for plan in (["svm.fit"], ["fit_ranker", "svm.fit"]):
        with raises(UserError, "fit_ranker"):
            head.check_plan(plan)
    with raises(UserError, "Linear", "'one'", "scores=validation"):
        build(splits[0].space, {"one": Linear}, scores="out_of_fold").check_plan(["fit_ranker"])


@pytest.mark.parametrize("name", ["a b", "1st", "rank", "features", "trees", "space", "a.b"])
def test_names_of_members(splits, name):
    with raises(UserError, "`members`", repr(name)):
        build(splits[0].space, {name: Linear})


def test_settings(splits):
    with raises(UserError, "`members`"):
        Blend(1, splits[0].space, {})
    with raises(UserError, "`candidates=0`"):
        build(splits[0].space, candidates=0)
    with raises(UserError, "`ranker.leaves=1`"):
        Boosting(leaves=1)


def test_where_nothing_can_be_learned_members_are_averaged(splits, capsys):
    train, val = splits[0], Corpus(documents=20, seed=5)
    val.labels = [[] for _ in val.labels]
    val._encode()
    head = build(train.space, {"one": Linear, "two": Linear}, [Scores])
    head.fit_ranker(train.context(val))
    assert "none of them is correct" in capsys.readouterr().err
    assert head.importances() == {}
    ranking = head.rank(splits[2].features, 3)
    members = torch.stack([member(splits[2].features) for member in head.inner_heads.values()])
    best = members.mean(0).argmax(1)
    assert torch.equal(ranking.labels[:, 0], best)
    other = build(train.space, {"one": Linear, "two": Linear}, [Scores])
    other.load_state_dict(head.state_dict())
    assert torch.equal(other.rank(splits[2].features, 3).labels, ranking.labels)


def test_words_are_needed(fitted, splits):
    with pytest.raises(UserError, match="batch"):
        fitted.rank(replace(splits[2].features, batch=None), 3)


def test_labels_cannot_be_added(fitted, splits):
    with raises(UserError, "Blend", "PrototypeTransfer"):
        fitted.learn_labels(splits[0].space, [])


def test_padded_rankings():
    head = build(Corpus(documents=50, seed=0).space, {"one": Linear})
    ranking = head.rank(Corpus(documents=5, seed=1).features, LABELS + 3)
    assert ranking.labels.shape == (5, LABELS + 3)
    assert isinstance(ranking, Ranking)
    assert (ranking.labels[:, 8:] == -1).all()


def test_few_pairs_have_the_same_logits_as_many():
    inputs, hits = noisy_pairs(missing=0.2)
    trees = BoostedTrees(inputs.shape[1], SMALL)
    trees.learn(inputs, hits)
    many = trees(torch.from_numpy(inputs))
    assert len(inputs) > boosting.FEW
    assert torch.equal(trees(torch.from_numpy(inputs[:9])), many[:9])
