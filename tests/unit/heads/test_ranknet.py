"""RankNet's network, loss and training, against numbers and slow loops."""

import math

import pytest
import torch

from heads import TransitionContext
from heads.tail.ranknet import (
    Candidates,
    RankNet,
    RankNetTraining,
    chosen_negatives,
    margin_sums,
    population_sums,
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


def random_net(num_labels=12, width=5, blocks=2, sparse=False):
    torch.manual_seed(1)
    net = RankNet(num_labels, width, blocks, sparse)
    with torch.no_grad():
        for table in net.second:
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
        net = RankNet(12, 5, blocks, sparse=False)
        assert torch.equal(net(batch.labels, batch.scores), batch.scores)


def test_fills_do_not_change_other_scores():
    net, batch = random_net(), random_batch()
    short = net(batch.labels[:, :5], batch.scores[:, :5])
    labels, scores = batch.labels.clone(), batch.scores.clone()
    labels[:, 5:], scores[:, 5:] = -1, 0
    assert torch.allclose(net(labels, scores)[:, :5], short, atol=1e-6)


def test_new_labels_neither_move_nor_are_moved():
    net, batch = random_net(blocks=1), random_batch(size=7)
    before = net(batch.labels, batch.scores)
    net.grow(14)
    labels = torch.cat([batch.labels, torch.tensor([[12, 13]] * 6)], dim=1)
    scores = torch.cat([batch.scores, torch.tensor([[0.3, 0.2]] * 6)], dim=1)
    after = net(labels, scores)
    assert torch.equal(after[:, 7:], scores[:, 7:])
    assert torch.allclose(after[:, :7], before, atol=1e-6)


def slow_terms(net, batch, counts, margin, wrong):
    """Both terms, one pair at a time."""
    scores, population, margins = net(batch.labels, batch.scores).detach(), [], []
    for f, labels, hits, others in zip(scores, batch.labels, batch.hits, wrong, strict=True):
        right = [i for i in range(len(f)) if hits[i]]
        n = {i: float(counts[labels[i]]) for i in right}
        pairs = [
            max((n[i] - n[j]) / max(n[i] + n[j], 1) * float(f[i] - f[j]), 0) for i in right for j in right if i != j
        ]
        population.append(sum(pairs) / max(len(pairs), 1))
        pairs = [max(float(f[k] - f[i]) + margin, 0) for i in right for k in range(len(f)) if others[k]]
        margins.append(sum(pairs) / len(pairs))
    return [sum(population) / len(population), sum(margins) / len(margins)]


@pytest.mark.parametrize("negatives", [4, 100])
def test_terms_are_means_over_pairs(negatives):
    net, batch, counts = random_net(), random_batch(), torch.arange(12.0).flip(0)
    drawn = torch.rand(batch.labels.shape, generator=seeded(5)) if negatives < 12 else None
    got = ranknet_terms(net, batch, counts, RankNetTraining(negatives=negatives), 0.1, drawn)
    expected = slow_terms(net, batch, counts, 0.1, chosen_negatives(batch, negatives, drawn))
    assert got.tolist() == pytest.approx(expected, rel=1e-5)


def test_half_of_the_negatives_are_the_hardest():
    hits = torch.zeros(400, 30, dtype=torch.bool)
    hits[:, [0, 3]] = True
    labels = torch.arange(30).repeat(400, 1)
    labels[:, 27:] = -1
    drawn = torch.rand(400, 30, generator=seeded())
    chosen = chosen_negatives(Candidates(labels, torch.zeros(400, 30), hits), 8, drawn)
    assert (chosen.sum(1) == 8).all()
    assert chosen[:, [1, 2, 4, 5]].all()
    assert not chosen[:, [0, 3, 27, 28, 29]].any()
    share = chosen[:, 6:27].float().mean(0)
    assert ((share - 4 / 21).abs() < 4 * math.sqrt(4 / 21 * 17 / 21 / 400)).all()


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


def trained(seed=0, sparse=False, first=True, **settings):
    candidates, counts = prepared()
    net, context = RankNet(40, 8, 1, sparse), TransitionContext(first=first)
    log = train_ranknet(net, candidates, counts, RankNetTraining(**settings), 0.1, seeded(seed), context)
    return net, log


@pytest.mark.parametrize("sparse", [False, True])
def test_training_lowers_the_loss_and_follows_the_seed(sparse):
    (one, log), (other, _), (third, _) = (trained(seed, sparse, lr=0.01, steps=75) for seed in (0, 0, 1))
    _, begin = trained(0, sparse, lr=1e-9, steps=1)
    assert log["loss"] < 0.9 * begin["loss"]
    assert log["loss"] == pytest.approx(log["population"] + 10 * log["margin"])
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(one.second[0].weight, third.second[0].weight)
    assert not any(p.requires_grad for p in one.parameters())


def test_the_best_weights_on_held_back_documents_are_kept():
    candidates, counts = prepared()
    useless = candidates._replace(scores=torch.where(candidates.hits, 5.0, -5.0))  # nothing is left to be gained
    worth = torch.ones(40)
    net = RankNet(40, 8, 1, False)
    settings = RankNetTraining(lr=1.0, steps=10, look_every=5)
    log = train_ranknet(net, useless, counts, settings, 20.0, seeded(), TransitionContext(), worth)
    assert log["best_look"] == 0
    assert not net.second[0].weight.any()
    assert log["documents"] == round(0.8 * len(candidates.labels))
    assert trained(steps=60)[1]["best_look"] == 3  # without their worth the last one


def test_logits_are_read_as_probabilities():
    candidates, _ = prepared(5)
    net, plain = RankNet(40, 8, 1, False, logits=True), RankNet(40, 8, 1, False)
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
    with raises(UserError, "`ranknet.lr`"):
        trained(lr=1e30)


def test_documents_without_positive_candidates_are_left_out():
    candidates, counts = prepared(20)
    net, settings = RankNet(40, 8, 1, False), RankNetTraining(steps=1)
    candidates.hits[:5] = False
    assert train_ranknet(net, candidates, counts, settings, 0.1, seeded(), TransitionContext())["documents"] == 15
    candidates.hits[:] = False
    with raises(UserError, "RankNet"):
        train_ranknet(net, candidates, counts, settings, 0.1, seeded(), TransitionContext())


@pytest.mark.parametrize("setting", [{"steps": 0}, {"lr": 0}, {"negatives": 0}, {"margin": -1.0}])
def test_invalid_settings_are_rejected(setting):
    with raises(UserError, f"`ranknet.{next(iter(setting))}="):
        RankNetTraining(**setting)
