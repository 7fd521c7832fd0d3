"""Every head works on every backbone; classes are found by looking, so new ones are covered."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from functools import cache

import pytest
import torch
from scipy.sparse import csr_array

import backbones
import heads
from backbones import Backbone, BiLSTM, Bow, Words
from datamodules.batch import Batch, LabelSpace, Targets
from heads import Head, Linear, LinearEngine, TransitionContext
from heads.blend import Proposals
from heads.tree.plt import TreeSettings
from zoo.core.errors import UserError
from zoo.core.exporting import exporting

SPACE = LabelSpace(
    [f"l{i}" for i in range(9)], [60, 40, 30, 22, 9, 5, 3, 2, 1], num_documents=80, vocab_size=30, unseen=["u"]
)
TRUTH = [[0, 3], [1], [2, 5, 8], [0, 9], [4, 6], [7]]  # 9 is a label that training never saw
LENGTHS = [9, 1, 5, 12, 3, 7]

# Arguments of these names are made small wherever a constructor takes them ...
SMALL = {"embed_dim": 10, "hidden": 8, "chunks": 2, "attention_dim": 8, "dropout": 0.0, "embed_dropout": 0.0}
# ... and here is what single classes need beside or instead. A new class needs a line only if this does not do.
ENCODER = {
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
OWN = {
    "AttentionXML": {"hidden": [8]},
    "Bow": {"dim": SMALL["embed_dim"], "blocks": 1, "min_documents": 1},
    "BowTokens": {"dim": SMALL["embed_dim"], "blocks": 1, "min_documents": 1, "tokens": True},
    "CNN": {"dim": 12},
    "Blend": {"members": {"one": Linear, "two": Linear}},
    "DXML": {"embed": 6},
    "Decoupled": {"head": Linear, "tail": Linear, "fraction": 0.4},
    "EXAM": {"length": 12},
    "GLaS": {"inner": Linear},
    "LightXML": {"tree": TreeSettings(clusters=4), "beam": 4},
    "Linear": {"hidden": None},
    "LabelSubset": {"make": Linear, "start": 0, "stop": 9},
    "PLT": {"hidden": [8], "tree": TreeSettings(clusters=4), "beam": 4},
    "PerLevel": {"encoder": lambda space: build(BiLSTM, space), "levels": 1},
    "PvaeAugmentor": {"feat_dim": 8, "pvae_hidden": 8, "latent": 4},
    "Rerank": {"inner": Linear, "exponent": 0.5},
    "Wide": {"inner": Linear, "engine": Linear},
    "Transformer": {"name": "bert", "pretrained": False, "config": ENCODER},
    "WordTransformer": {"name": "bert", "pretrained": False, "config": ENCODER},
}
# Parameters whose gradient is zero by design: a softmax does not change when all scores are shifted.
SHIFTS = {"pool.score.bias", "attention.self.key.bias"}
# Parameters, by the beginnings of their names, that train only after transitions.
LATER = {
    "OLTR": ("head.centroids", "head.selector", "head.weight", "head.bias"),
    "PrototypeTransfer": ("head.tail",),
}
# Heads of token states alone, and where backbones have parameters for the pooled vector, which these leave untrained.
TOKENS_ONLY = {"AttentionXML", "EXAM", "LDGN", "LSAN", "PLT", "PvaeAugmentor"}
POOLED = (
    "backbone.pool.",
    "backbone.bottleneck.",
    "backbone.encoders.0.pool.",
    "backbone.bias",
    "backbone.blocks.",
)


class BowTokens(Bow):
    """With word vectors as token states."""


def concrete(package, base):
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    found, queue = {}, [base]
    while queue:
        kind = queue.pop()
        queue += kind.__subclasses__()
        if not inspect.isabstract(kind) and kind.__module__.split(".")[0] == package.__name__:
            found[kind.__name__] = kind
    return [found[name] for name in sorted(found)]


# What no gradient trains is in test_engines.py.
BACKBONES = [kind for kind in [*concrete(backbones, Backbone), BowTokens] if kind is not Words]
# `Proposals` ranks nothing: it has the place of a finished model.
HEADS = [kind for kind in concrete(heads, Head) if not issubclass(kind, LinearEngine) and kind is not Proposals]
pairs = pytest.mark.parametrize(
    ("backbone", "head"), [(b, h) for b in BACKBONES for h in HEADS], ids=lambda kind: kind.__name__
)


def build(kind, *args):
    taken = inspect.signature(kind).parameters
    small = {name: value for name, value in SMALL.items() if name in taken}
    return kind(*args, **small | OWN.get(kind.__name__, {}))


class Pair(torch.nn.Module):
    def __init__(self, backbone, head, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.backbone = build(backbone, SPACE)
        if self.backbone.reads_counts:
            self.backbone.learn_counts(counts(documents()))
        self.head = build(head, self.backbone.dim, SPACE)
        if self.head.needs_tokens and not self.backbone.has_tokens:
            pytest.skip(f"{head.__name__} needs token states")
        if self.head.needs_layers > self.backbone.num_layers:
            pytest.skip(f"{head.__name__} needs {self.head.needs_layers} layers")

    def loss(self, batch):
        return self.head.loss(self.backbone(batch), batch.targets, "train")["loss"]

    @torch.no_grad()
    def rank(self, batch, k):
        self.eval()
        return self.head.rank(self.backbone(batch), k)


@torch.no_grad()
def transition(pair, batch):
    """A transition over one batch that holds all training documents."""
    known = batch.targets.dense(SPACE.num_labels)
    targets = Targets.from_lists([row.nonzero().flatten().tolist() for row in known])
    return TransitionContext(pair.eval().backbone(batch), targets, counts(batch), backbone=pair.backbone)


def counts(batch):
    """How often each document has each token."""
    empty = torch.zeros(len(batch), SPACE.vocab_size)
    return csr_array(empty.scatter_add(1, batch.ids, batch.mask.float()).numpy())


def enter(pair, batch):
    """Run the transitions of the head."""
    context = transition(pair, batch)
    for method in pair.head.pending:
        getattr(pair.head, method)(context)
    return context.logged


def documents(columns=0):
    generator = torch.Generator().manual_seed(1)
    mask = torch.arange(max(LENGTHS) + columns) < torch.tensor(LENGTHS)[:, None]
    ids = torch.full(mask.shape, SPACE.pad_id)
    ids[mask] = torch.randint(2, SPACE.vocab_size, (sum(LENGTHS),), generator=generator)
    return Batch(ids, mask, Targets.from_lists(TRUTH), torch.arange(len(LENGTHS)))


def train(pair, batch, steps=20):
    optimizer = torch.optim.Adam([p for p in pair.parameters() if p.requires_grad], lr=0.01)
    losses = []
    pair.train()
    for _ in range(steps):
        optimizer.zero_grad()
        loss = pair.loss(batch)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_classes_were_found():
    assert {"BiLSTM", "CNN", "Transformer"} <= {kind.__name__ for kind in BACKBONES}
    assert "Linear" in {kind.__name__ for kind in HEADS}
    assert {*OWN, *LATER, *TOKENS_ONLY} <= {kind.__name__ for kind in BACKBONES + HEADS}


@pairs
def test_loss_is_finite_and_falls(backbone, head):
    losses = train(Pair(backbone, head), documents())
    assert torch.tensor(losses).isfinite().all()
    assert losses[-1] < 0.9 * losses[0]


@cache
def trained(backbone, head):
    """A pair after a few steps, which several tests read."""
    pair = Pair(backbone, head)
    train(pair, documents(), steps=3)
    return pair


@pairs
def test_ranking_is_sorted_in_range_and_without_repeats(backbone, head):
    batch = documents()
    for k in (1, 4, SPACE.num_labels):
        check_ranking(trained(backbone, head).rank(batch, k), len(batch), k)


def check_ranking(ranking, size, k):
    assert ranking.labels.shape == ranking.scores.shape == (size, k)
    assert ranking.labels.dtype == torch.long
    assert ((ranking.scores >= 0) & (ranking.scores <= 1)).all()
    assert (ranking.scores.diff(dim=1) <= 0).all()
    for labels, scores in zip(ranking.labels.tolist(), ranking.scores.tolist(), strict=True):
        known = [label for label in labels if label >= 0]
        assert known
        assert labels == known + [-1] * (k - len(known))
        assert len(set(known)) == len(known)
        assert max(known) < SPACE.num_labels
        assert all(score == 0 for score in scores[len(known) :])


@pairs
def test_padding_changes_nothing(backbone, head):
    pair = Pair(backbone, head).eval()
    tight, wide = documents(), documents(columns=10)
    assert torch.allclose(pair.loss(tight), pair.loss(wide), atol=1e-5)
    one, other = pair.rank(tight, SPACE.num_labels), pair.rank(wide, SPACE.num_labels)
    assert torch.equal(one.labels, other.labels)
    assert torch.allclose(one.scores, other.scores, atol=1e-6)


@pairs
def test_export_mode_changes_nothing(backbone, head):
    pair, batch = Pair(backbone, head), documents(columns=3)
    expected = pair.rank(batch, SPACE.num_labels)
    with exporting():
        found = pair.rank(batch, SPACE.num_labels)
    assert torch.allclose(found.scores, expected.scores, atol=1e-6)
    same = found.labels == expected.labels
    assert torch.equal(found.scores[~same], expected.scores[~same])  # ties


@pairs
def test_every_trainable_parameter_gets_a_gradient(backbone, head):
    check_gradients(Pair(backbone, head), documents(), LATER.get(head.__name__, ()))


def check_gradients(pair, batch, later=()):
    pair.train().zero_grad()
    pair.loss(batch).backward()
    trainable = {name: p for name, p in pair.named_parameters() if p.requires_grad}
    unused = POOLED if type(pair.head).__name__ in TOKENS_ONLY else ()
    assert trainable
    for name, parameter in trainable.items():
        if name.startswith((*later, *unused)):
            assert parameter.grad is None or not parameter.grad.any(), name
            continue
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any() or any(name.endswith(shift) for shift in SHIFTS), name


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("head", [kind for kind in HEADS if build(kind, 12, SPACE).pending], ids=lambda k: k.__name__)
def test_training_goes_on_after_the_transitions(backbone, head):
    pair, batch = Pair(backbone, head), documents()
    train(pair, batch, steps=3)
    logged = enter(pair, batch)
    assert all(isinstance(value, float) for value in logged.values())
    check_gradients(pair, batch)
    losses = train(pair, batch)
    assert torch.tensor(losses).isfinite().all()
    assert losses[-1] < losses[0]
    for k in (1, 4, SPACE.num_labels):
        check_ranking(pair.rank(batch, k), len(batch), k)
    other, expected = Pair(backbone, head, seed=1), pair.rank(batch, SPACE.num_labels)
    other.load_state_dict(pair.state_dict())
    assert torch.equal(other.rank(batch, SPACE.num_labels).labels, expected.labels)


@pairs
def test_weights_carry_the_whole_ranking(backbone, head):
    batch, pair, other = documents(), trained(backbone, head), Pair(backbone, head, seed=1)
    expected = pair.rank(batch, SPACE.num_labels)
    assert not torch.equal(other.rank(batch, SPACE.num_labels).scores, expected.scores)
    other.load_state_dict(pair.state_dict())
    got = other.rank(batch, SPACE.num_labels)
    assert torch.equal(got.labels, expected.labels)
    assert torch.equal(got.scores, expected.scores)


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda kind: kind.__name__)
def test_word_vectors_are_taken_or_refused(backbone):
    made, vectors = build(backbone, SPACE), torch.rand(SPACE.vocab_size, SMALL["embed_dim"])
    if backbone.load_vectors is Backbone.load_vectors:
        with pytest.raises(UserError, match=f"{backbone.__name__}.*`data.vectors`"):
            made.load_vectors(vectors)
    else:
        made.load_vectors(vectors)
        assert any(torch.equal(parameter, vectors) for parameter in made.parameters())
