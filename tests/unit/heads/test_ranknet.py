"""RankNet's network, loss and training, against numbers and slow loops."""

import math

import pytest
import torch

from heads import TransitionContext
from heads.tail.ranknet import RankNet, margin_sums, population_sums
from heads.tail.ranknet_training import (
    Candidates,
    RankNetTraining,
    chosen_negatives,
    ranknet_terms,
    train_ranknet,
)
from tests.support.errors import raises
from tests.support.httn import seeded
from tests.support.rerank import long_tail
from zoo.core.errors import UserError


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def yes(size):
    return torch.ones(1, size, dtype=torch.bool)


def test_terms_by_hand():
    # n = (100, 10, 1), F = (2, 1, .5, .8), labels 0 and 2
    positives = row(2.0, 0.5).requires_grad_()
    first = population_sums(positives, row(100, 1), yes(2))
    assert first.item() == pytest.approx(2 * 99 / 101 * 1.5)
    assert first.item() == pytest.approx(2.940594, abs=1e-6)
    assert margin_sums(positives, yes(2), row(1.0, 0.8), yes(2), margin=1.0).item() == pytest.approx(2.8)
    first.backward()
    assert positives.grad.tolist() == [[pytest.approx(2 * 99 / 101), pytest.approx(-2 * 99 / 101)]]


def test_fills_are_masked():
    mask = torch.tensor([[True, False, True]])
    assert population_sums(row(2.0, 9.0, 0.5), row(100, 1, 1), mask).item() == pytest.approx(2.940594, abs=1e-6)
    others = torch.tensor([[True, True, False]])
    assert margin_sums(row(2.0, 9.0, 0.5), mask, row(1.0, 0.8, 7.0), others, 1.0).item() == pytest.approx(2.8)


def random_batch(documents=6, num_labels=12, size=12, seed=0):
    generator = seeded(seed)
    labels = torch.stack([torch.randperm(num_labels, generator=generator)[:size] for _ in range(documents)])
    scores = torch.rand(documents, size, generator=generator).sort(descending=True).values
    hits = torch.rand(documents, size, generator=generator) < 0.3
    hits[:, 0] = True
    return Candidates(labels, scores, hits)


def propensities(num_labels=12):
    """Inverse propensities that rise from 1.1 to 5."""
    return torch.linspace(1.1, 5, num_labels)


def random_net(num_labels=12, width=5, blocks=2, sparse=False, scale="probabilities", **settings):
    torch.manual_seed(1)
    net = RankNet(propensities(num_labels), width, blocks, sparse, scale, **settings)
    with torch.no_grad():
        for table in (*net.second, *net.diagonal):
            table.weight.normal_()
    return net


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_sparse_form_equals_the_dense_one(blocks):
    net, batch = random_net(blocks=blocks), random_batch()
    dense = torch.zeros(6, 12).scatter(1, batch.labels, batch.scores)
    for first, second in zip(net.first, net.second, strict=True):
        dense = (dense @ first.weight).relu() @ second.weight.T + dense  # W1 is (V, L), of which this is the transpose
    assert torch.allclose(net(batch.labels, batch.scores), dense.gather(1, batch.labels), atol=1e-6)


def test_the_network_starts_as_the_identity():
    batch = random_batch(size=7)
    for blocks in (1, 3):
        net = RankNet(propensities(), 5, blocks)
        assert torch.equal(net(batch.labels, batch.scores), batch.scores)


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_full_form_is_a_matrix(blocks):
    """F = Wr f + f with Wr = diag(d) + W2 W1, for each block."""
    net, batch = random_net(blocks=blocks, form="full"), random_batch()
    dense = torch.zeros(6, 12).scatter(1, batch.labels, batch.scores)
    for first, second, diagonal in zip(net.first, net.second, net.diagonal, strict=True):
        matrix = torch.diag(diagonal.weight.flatten()) + second.weight @ first.weight.T
        dense = dense @ matrix.T + dense
    assert torch.allclose(net(batch.labels, batch.scores), dense.gather(1, batch.labels), atol=1e-5)


@pytest.mark.parametrize("blocks", [1, 2])
def test_the_full_form_starts_as_weighting_by_propensity(blocks):
    batch, net = random_batch(), RankNet(propensities(), 5, blocks, scale="probabilities", form="full")
    torch.testing.assert_close(net(batch.labels, batch.scores), propensities()[batch.labels] * batch.scores)
    assert net.largest_factor() == pytest.approx(5)
    net.neutralize()
    assert torch.equal(net(batch.labels, batch.scores), batch.scores)


def test_the_exponent_multiplies_by_a_power_of_the_inverse_propensity():
    batch, net = random_batch(), RankNet(propensities(), 5, blocks=0, exponent=0.7)
    got = net(batch.labels, batch.scores.log()).exp()
    torch.testing.assert_close(got, propensities()[batch.labels] ** 0.7 * batch.scores)
    assert net.largest_factor() == pytest.approx(5**0.7)
    assert [name for name, _ in net.named_parameters()] == ["exponent"]


def test_all_parts_add_up():
    net, batch = random_net(blocks=1, scale="log_probabilities", exponent=0.7), random_batch()
    with_all = net(batch.labels, batch.scores.log())
    dense = torch.zeros(6, 12).scatter(1, batch.labels, batch.scores)
    change = (dense @ net.first[0].weight).relu() @ net.second[0].weight.T
    expected = batch.scores.log() + 0.7 * propensities().log()[batch.labels] + change.gather(1, batch.labels)
    torch.testing.assert_close(with_all, expected)


def test_fills_do_not_change_other_scores():
    net, batch = random_net(), random_batch()
    short = net(batch.labels[:, :5], batch.scores[:, :5])
    labels, scores = batch.labels.clone(), batch.scores.clone()
    labels[:, 5:], scores[:, 5:] = -1, 0
    assert torch.allclose(net(labels, scores)[:, :5], short, atol=1e-6)


def test_new_labels_neither_move_nor_are_moved():
    net, batch = random_net(blocks=1), random_batch(size=7)
    before = net(batch.labels, batch.scores)
    net.grow(torch.cat([propensities(), torch.tensor([6.0, 7.0])]))
    labels = torch.cat([batch.labels, torch.tensor([[12, 13]] * 6)], dim=1)
    scores = torch.cat([batch.scores, torch.tensor([[0.3, 0.2]] * 6)], dim=1)
    after = net(labels, scores)
    assert torch.equal(after[:, 7:], scores[:, 7:])
    assert torch.allclose(after[:, :7], before, atol=1e-6)
    full = RankNet(propensities(), 5, 1, scale="probabilities", form="full")
    full.grow(net.log_inverse.exp())
    torch.testing.assert_close(full(labels, scores)[:, 7:], torch.tensor([[1.8, 1.4]] * 6))  # 6 * 0.3 and 7 * 0.2


def slow_terms(net, batch, counts, margin, wrong, mean=True):
    """Both terms, one pair at a time."""
    scores, population, margins = net(batch.labels, batch.scores).detach(), [], []
    for f, labels, hits, others in zip(scores, batch.labels, batch.hits, wrong, strict=True):
        right = [i for i in range(len(f)) if hits[i]]
        n = {i: float(counts[labels[i]]) for i in right}
        pairs = [
            max((n[i] - n[j]) / max(n[i] + n[j], 1) * float(f[i] - f[j]), 0) for i in right for j in right if i != j
        ]
        population.append(sum(pairs) / (max(len(pairs), 1) if mean else 1))
        pairs = [max(float(f[k] - f[i]) + margin, 0) for i in right for k in range(len(f)) if others[k]]
        margins.append(sum(pairs) / (len(pairs) if mean else 1))
    return [sum(population) / len(population), sum(margins) / len(margins)]


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("hard", ["current", "base", "none"])
@pytest.mark.parametrize("negatives", [4, 100])
def test_terms_are_means_or_sums_over_pairs(negatives, hard, reduction):
    net, batch, counts = random_net(), random_batch(), torch.arange(12.0).flip(0)
    drawn = torch.rand(batch.labels.shape, generator=seeded(5)) if negatives < 12 else None
    settings = RankNetTraining(negatives=negatives, hard_negatives=hard, reduction=reduction)
    got = ranknet_terms(net, batch, counts, settings, 0.1, drawn)
    scores = {"current": net(batch.labels, batch.scores), "base": batch.scores, "none": None}[hard]
    wrong = chosen_negatives(batch, negatives, drawn, scores)
    assert got.tolist() == pytest.approx(slow_terms(net, batch, counts, 0.1, wrong, reduction == "mean"), rel=1e-5)


def test_half_of_the_negatives_are_the_hardest():
    hits = torch.zeros(400, 30, dtype=torch.bool)
    hits[:, [0, 3]] = True
    labels = torch.arange(30).repeat(400, 1)
    labels[:, 27:] = -1
    drawn = torch.rand(400, 30, generator=seeded())
    batch = Candidates(labels, torch.zeros(400, 30), hits)
    chosen = chosen_negatives(batch, 8, drawn, batch.scores)
    assert (chosen.sum(1) == 8).all()
    assert chosen[:, [1, 2, 4, 5]].all()
    assert not chosen[:, [0, 3, 27, 28, 29]].any()
    share = chosen[:, 6:27].float().mean(0)
    assert ((share - 4 / 21).abs() < 4 * math.sqrt(4 / 21 * 17 / 21 / 400)).all()
    reversed_ = chosen_negatives(batch, 8, drawn, torch.arange(30.0).expand(400, -1))
    assert reversed_[:, 23:27].all()  # hard by other scores
    sampled = chosen_negatives(batch, 8, drawn, None)
    assert (sampled.sum(1) == 8).all()
    share = sampled[:, [1, 2, *range(4, 27)]].float().mean(0)
    assert ((share - 8 / 25).abs() < 4 * math.sqrt(8 / 25 * 17 / 25 / 400)).all()


def test_sparse_gradients_equal_dense_ones():
    batch, counts, grads = random_batch(), torch.arange(12.0).flip(0), []
    for sparse in (False, True):
        net = random_net(sparse=sparse)
        ranknet_terms(net, batch, counts, RankNetTraining(), 0.1, None).sum().backward()
        grads.append([p.grad.to_dense() if sparse else p.grad for p in net.parameters()])
        assert all(p.grad.is_sparse == sparse for p in net.parameters())
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*grads, strict=True))


def prepared(documents=200):
    space, targets, scores = long_tail(documents=documents)
    order = scores.argsort(dim=1, descending=True)
    hits = targets.dense(space.num_labels).bool().gather(1, order)
    return Candidates(order, scores.gather(1, order), hits), torch.tensor(space.counts).float()


def trained(seed=0, sparse=False, first=True, blocks=1, **settings):
    candidates, counts = prepared()
    net = RankNet(propensities(40), 8, blocks, sparse, "probabilities")
    context = TransitionContext(first=first)
    log = train_ranknet(net, candidates, counts, RankNetTraining(**settings), 0.1, seeded(seed), context)
    return net, log


@pytest.mark.parametrize("sparse", [False, True])
def test_training_lowers_the_loss_and_follows_the_seed(sparse):
    (one, log), (other, _), (third, _) = (trained(seed, sparse, lr=0.01, steps=75) for seed in (0, 0, 1))
    _, begin = trained(0, sparse, lr=1e-9, steps=1)
    assert log["loss"] < 0.9 * begin["loss"]
    assert log["loss"] == pytest.approx(log["population"] + 3 * log["margin"])
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(one.second[0].weight, third.second[0].weight)
    assert not any(p.requires_grad for p in one.parameters())


def test_the_best_weights_on_held_back_documents_are_kept():
    candidates, counts = prepared()
    useless = candidates._replace(scores=torch.where(candidates.hits, 5.0, -5.0))  # nothing is left to be gained
    worth = torch.ones(40)
    net = RankNet(propensities(40), 8, 1)
    settings = RankNetTraining(lr=1.0, steps=10, look_every=5)
    log = train_ranknet(net, useless, counts, settings, 20.0, seeded(), TransitionContext(), worth)
    assert log["best_look"] == 0
    assert not net.second[0].weight.any()
    assert log["documents"] == round(0.8 * len(candidates.labels))
    assert trained(steps=60)[1]["best_look"] == 3  # without their worth the last one


@pytest.mark.parametrize("start", [0.0, 1.0])
def test_the_exponent_minimises_the_loss(start):
    candidates, counts = prepared()
    logs = candidates._replace(scores=candidates.scores.log())
    net = RankNet(30 / counts.clamp_min(1) + 1, 8, 0, exponent=start)
    settings = RankNetTraining(steps=150, exponent_lr=0.02, held_back=0, negatives=100)
    log = train_ranknet(net, logs, counts, settings, 0.5, seeded(), TransitionContext())
    found = float(net.exponent)
    assert log["exponent"] == pytest.approx(found)
    losses = {}
    for power in torch.linspace(-1, 2, 61).tolist():
        net.exponent.fill_(power)
        terms = ranknet_terms(net, logs, counts, settings, 0.5, None)
        losses[power] = float(terms[0] + 3 * terms[1])
    assert found == pytest.approx(min(losses, key=losses.get), abs=0.06)


@pytest.mark.parametrize("sparse", [False, True])
def test_tables_and_exponent_are_trained_together(sparse):
    candidates, counts = prepared()
    logs = candidates._replace(scores=candidates.scores.log())
    net = RankNet(30 / counts.clamp_min(1) + 1, 8, 1, sparse, exponent=0.5)
    train_ranknet(net, logs, counts, RankNetTraining(steps=10), 0.5, seeded(), TransitionContext())
    assert float(net.exponent) != 0.5
    assert net.second[0].weight.any()
    assert not any(p.requires_grad for p in net.parameters())


def test_weights_that_cost_too_much_are_not_kept():
    """Even the initial ones: with an exponent, F differs from f at the start."""
    candidates, counts = prepared()
    logs = candidates._replace(scores=candidates.scores.log())
    net = RankNet(1 + 40 * torch.rand(40, generator=seeded()), 8, 0, exponent=3.0)
    settings = RankNetTraining(steps=2, look_every=1, held_back=0.5, allowed_loss=0.0)
    log = train_ranknet(net, logs, counts, settings, 0.5, seeded(), TransitionContext(), torch.ones(40))
    assert log["best_look"] == -1
    assert float(net.exponent) == 0


def test_logits_are_read_as_probabilities():
    candidates, _ = prepared(5)
    net, plain = (RankNet(propensities(40), 8, 1, scale=scale) for scale in ("logits", "probabilities"))
    for table in (*net.first, *net.second):
        torch.nn.init.normal_(table.weight)
    plain.load_state_dict(net.state_dict())
    probable = candidates.scores.sigmoid()
    change = plain(candidates.labels, probable) - probable
    torch.testing.assert_close(net(candidates.labels, candidates.scores), candidates.scores + change)


def test_other_processes_wait_for_the_first():
    net, log = trained(first=False)
    assert not net.second[0].weight.any()
    assert log["loss"] == 0


def test_a_loss_that_is_not_finite_is_reported():
    (candidates, counts), settings = prepared(), RankNetTraining()
    settings.lr = 1e30  # beyond its range, so that the loss diverges at once
    with raises(UserError, "`ranknet.lr`"):
        net = RankNet(propensities(40), 8, 1, False, "probabilities")
        train_ranknet(net, candidates, counts, settings, 0.1, seeded(), TransitionContext())


def test_documents_without_positive_candidates_are_left_out():
    candidates, counts = prepared(20)
    net, settings = RankNet(propensities(40), 8, 1), RankNetTraining(steps=1)
    candidates.hits[:5] = False
    assert train_ranknet(net, candidates, counts, settings, 0.1, seeded(), TransitionContext())["documents"] == 15
    candidates.hits[:] = False
    with raises(UserError, "RankNet"):
        train_ranknet(net, candidates, counts, settings, 0.1, seeded(), TransitionContext())


@pytest.mark.parametrize("setting", [{"steps": 0}, {"lr": 0}, {"exponent_lr": 0}, {"negatives": 0}, {"margin": -1.0}])
def test_invalid_settings_are_rejected(setting):
    with raises(UserError, f"`ranknet.{next(iter(setting))}="):
        RankNetTraining(**setting)
