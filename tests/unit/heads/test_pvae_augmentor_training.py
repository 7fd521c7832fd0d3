"""LSFA on clusters: labels differ in their centers and share their directions of variation."""

import functools

import pytest
import torch

from backbones.base import Features
from datamodules.batch import LabelSpace, Targets
from heads.augment.pvae import PVAETraining
from tests.support.httn import seeded
from tests.support.lsfa import build, some, transition

DIM, WAYS, EMPTY = 16, 3, 4
COUNTS = [50] * 20 + [4] * 10  # training documents of each label; a document has one
TEST = [20] * 30


def clusters(counts, seed):
    """Documents with one token of their label and tokens of noise."""
    centers, ways = torch.randn(len(counts) + WAYS, DIM, generator=seeded(0)).split([len(counts), WAYS])
    label, generator = torch.arange(len(counts)).repeat_interleave(torch.tensor(counts)), seeded(seed)
    own = centers[label] + 0.2 * torch.randn(len(label), WAYS, generator=generator) @ ways
    others = 0.2 * torch.randn(len(label), EMPTY, DIM, generator=generator)
    tokens = torch.cat([own.unsqueeze(1), others], dim=1)
    features = Features(tokens, torch.ones(tokens.shape[:2]).bool(), tokens.mean(1), (tokens,))
    return features, Targets.from_lists(label[:, None].tolist())


def new(samples=50, psc_weight=0.1):
    features, targets = clusters(COUNTS, seed=1)
    space = LabelSpace([f"l{i}" for i in range(len(COUNTS))], COUNTS, len(targets), vocab_size=9)
    sizes = {"feat_dim": 24, "head_count": 50, "pvae_hidden": 64, "latent": 16}
    training = PVAETraining(epochs=25, lr=2e-3)
    head = build(space, DIM, samples=samples, psc_weight=psc_weight, psc_start=2, pvae=training, **sizes)
    return head, transition(features, targets, batch_size=500)


def train(head, context, epochs, names):
    optimizer = torch.optim.Adam([p for name, p in head.named_parameters() if name.startswith(names)], lr=0.01)
    for context.epoch in range(epochs):
        if not head.is_adjusting:
            head.refresh_prototypes(context)
        for rows in torch.randperm(len(context.targets)).split(64):
            optimizer.zero_grad()
            head.loss(*some(context.features, context.targets, rows), "any")["loss"].backward()
            optimizer.step()


@functools.cache
def represented(psc_weight=0.1):
    """Weights after the first stage."""
    head, context = new(psc_weight=psc_weight)
    train(head, context, 16, ("query", "project", "classifier"))
    return head.state_dict()


def adjusted(samples):
    head, context = new(samples)
    head.load_state_dict(represented())
    for method in ("collect_bank", "train_pvae", "start_adjustment"):
        getattr(head, method)(context)
    torch.manual_seed(0)
    train(head, context, 8, "classifier")
    return head


@torch.no_grad()
def recalls(head, k):
    """recall@k of frequent labels, and of rare ones."""
    features, targets = clusters(TEST, seed=2)
    hit = (head.rank(features, k).labels == targets.indices[:, None]).any(1).float()
    return [part.mean().item() for part in hit.split([20 * 20, 20 * 10])]


def test_generated_features_surround_the_prototypes_of_rare_labels():
    head, context = new()
    head.load_state_dict(represented())
    head.collect_bank(context)
    bank = head.bank
    of_head = head.is_head[bank.labels]
    around = (bank.features - head.prototypes[bank.labels])[of_head].std(0)
    head.train_pvae(context)
    tail = head.tail_labels
    made = head.generate(tail.repeat_interleave(200), seeded()).view(len(tail), 200, -1)
    off = (made.mean(1) - head.prototypes[tail]).norm(dim=1) / head.prototypes[tail].norm(dim=1)
    assert off.median() < 0.3
    assert context.logged["pvae/off_prototype"] == pytest.approx(off.median().item(), abs=0.1)
    spread = made.std(1).mean(0) / around
    assert spread.min() > 0.01
    assert spread.max() < 3


def test_generated_features_raise_the_recall_of_rare_labels():
    plain, augmented = adjusted(samples=0), adjusted(samples=50)
    assert recalls(augmented, 5)[1] > recalls(plain, 5)[1] + 0.15
    assert recalls(augmented, 1)[1] > recalls(plain, 1)[1]
    assert recalls(augmented, 1)[0] > recalls(plain, 1)[0] - 0.05


def test_the_contrastive_term_draws_features_to_their_prototypes():
    ratios = []
    for psc_weight in (0.0, 0.5):
        head, context = new()
        head.load_state_dict(represented(psc_weight))
        head.collect_bank(context)
        within = (head.bank.features - head.prototypes[head.bank.labels]).norm(dim=1).mean()
        ratios.append((within / torch.pdist(head.prototypes).mean()).item())
    assert ratios[1] < 0.85 * ratios[0]
