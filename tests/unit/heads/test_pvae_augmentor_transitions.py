"""LSFA's transitions: prototypes, feature bank, PVAE training, adjustment; saved state and settings."""

import pytest
import torch
from torch import nn

from datamodules.batch import Targets
from heads.augment.pvae import PVAETraining
from tests.support.documents import label_space
from tests.support.errors import raises
from tests.support.httn import seeded
from tests.support.lsfa import adjusting, build, documents, prepared, transition
from zoo.core.errors import UserError

TRANSITIONS = ("collect_bank", "train_pvae", "start_adjustment")


def copy_of(head):
    return {name: value.clone() for name, value in head.state_dict().items()}


def changed(head, before):
    """Names of parameters and buffers that differ."""
    return {name for name, value in head.state_dict().items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("label_specific", [True, False])
@pytest.mark.parametrize("feat_dim", [5, None])
def test_prototypes_are_means_however_they_are_computed(label_specific, feat_dim):
    settings = {"label_specific": label_specific, "feat_dim": feat_dim, "counts": (30, 20, 12, 3, 1, 0), "unseen": 1}
    head, context = prepared(**settings)
    known = context.targets.below(6)
    y = context.targets.dense(6)
    features = torch.zeros(60, 6, head.width)
    features[known.rows, known.indices] = head.pair_features(context.features, known).detach()
    expected = torch.einsum("nl,nlw->lw", y / y.sum(0).clamp_min(1), features)

    head.refresh_prototypes(context)
    streamed = head.prototypes.clone()
    assert torch.allclose(streamed, expected, atol=1e-6)
    assert head.support.tolist() == y.sum(0).tolist() == [30, 20, 12, 3, 1, 0]
    other = prepared(**settings)[0]
    order = torch.randperm(60, generator=seeded())
    shuffled = transition(context.features, context.targets, batch_size=11, order=order)
    other.collect_bank(shuffled)
    assert torch.allclose(other.prototypes, streamed, atol=1e-6)
    assert torch.equal(other.support, head.support)
    assert not head.prototypes[5].any()
    assert head.bank is None
    assert torch.allclose(other.bank.features, features[other.bank.documents, other.bank.labels], atol=1e-6)


def test_prototypes_are_refreshed_from_psc_start_on():
    head, context = prepared(psc_start=2)
    for context.epoch in range(3):
        assert not head.has_prototypes
        assert not head.prototypes.any()
        head.refresh_prototypes(context)
    assert head.has_prototypes
    assert len(context.passes) == 1
    before = head.prototypes.clone()
    nn.init.normal_(head.project.weight)
    context.epoch = 3
    head.refresh_prototypes(context)
    assert not torch.allclose(head.prototypes, before)


def test_the_contrastive_term_pauses_between_its_epochs():
    head, context = prepared(psc_start=3, psc_every=2)
    contrasted = []
    for context.epoch in range(8):
        head.refresh_prototypes(context)
        if "psc" in head.loss(context.features, context.targets, "any"):
            contrasted.append(context.epoch)
        other = build(label_space((30, 20, 12, 9, 3, 1), 60))  # a run that resumes within the epoch
        other.load_state_dict(head.state_dict())
        assert other.has_prototypes == head.has_prototypes
    assert contrasted == [4, 6]
    assert len(context.passes) == 2


def test_no_prototypes_without_the_contrastive_term():
    head, context = prepared(psc_weight=0.0)
    head.refresh_prototypes(context)
    assert not head.has_prototypes
    assert len(context.passes) == 0
    head.collect_bank(context)
    assert head.loss(context.features, context.targets, "any").keys() == {"bce", "loss"}


def test_head_count_is_inclusive():
    space = label_space([90, 50, 49, 0])
    head = build(space, head_count=50)
    assert head.is_head.tolist() == [True, True, False, False]
    assert head.tail_labels.tolist() == [2]  # what has no document has no prototype either


def test_the_pvae_is_trained_on_head_labels_only(monkeypatch):
    head, context = prepared()
    given = {}
    monkeypatch.setattr(
        "heads.augment.pvae_augmentor.train_pvae", lambda pvae, pairs, *args: given.update(pairs=pairs) or {}
    )
    head.collect_bank(context)
    bank = head.bank
    head.train_pvae(context)
    pairs = given["pairs"]
    assert pairs.features is bank.features
    assert pairs.labels[pairs.rows].bincount().tolist() == [30, 20, 12]
    assert torch.equal(pairs.prototypes, head.prototypes)


def test_training_changes_the_pvae_only_and_frees_the_bank():
    head, context = prepared()
    head.collect_bank(context)
    before = copy_of(head)
    head.train_pvae(context)
    assert head.bank is None
    assert len(context.passes) == 1
    assert changed(head, before) == {"generates", *(name for name in before if name.startswith("pvae."))}
    assert not any(p.requires_grad for p in head.pvae.parameters())
    names = {"loss", "error", "epochs", "off_prototype", "spread"}
    assert context.logged.keys() == {f"pvae/{name}" for name in names}
    assert all(isinstance(value, float) for value in context.logged.values())


def test_train_pvae_collects_a_missing_bank():
    head, context = prepared()
    other, again = prepared()
    head.train_pvae(context)
    other.collect_bank(again)
    other.train_pvae(again)
    assert len(context.passes) == 1
    assert head.bank is None
    assert not changed(head, copy_of(other))


@pytest.mark.parametrize("restart", ["reset", "warm"])
def test_restart_resets_or_keeps_the_classifiers(restart):
    head, context = prepared(restart=restart, bias=True)
    nn.init.zeros_(head.classifier.bias)
    head.train_pvae(context)
    before = copy_of(head)
    head.start_adjustment(context)
    anew = {"classifier.weight", "classifier.bias"} if restart == "reset" else set()
    assert changed(head, before) == {"adjusting"} | anew
    if restart == "reset":
        assert torch.equal(head.classifier.bias, head.classifier.prior)
        assert head.classifier.weight.std().item() == pytest.approx((2 / (6 + 5)) ** 0.5, rel=0.4)


def test_adjustment_changes_classifiers_only():
    head, context = adjusting()
    for name, parameter in head.named_parameters():
        parameter.requires_grad_(name.startswith("classifier."))  # as the stage does
    before = copy_of(head)
    optimizer = torch.optim.Adam([p for p in head.parameters() if p.requires_grad], lr=0.01)
    for _ in range(3):
        optimizer.zero_grad()
        head.loss(context.features, context.targets, "adjust")["loss"].backward()
        optimizer.step()
    assert changed(head, before) == {"classifier.weight"}
    assert all(p.grad is None for name, p in head.named_parameters() if not name.startswith("classifier."))


@pytest.mark.parametrize(
    ("samples", "counts"), [(0, (30, 20, 3, 1)), (5, (30, 20, 12))], ids=["no-samples", "no-tail-labels"]
)
def test_adjustment_without_samples_or_tail_labels(samples, counts):
    head, context = prepared(counts=counts, samples=samples)
    assert head.pending == ()
    before = copy_of(head)
    head.collect_bank(context)
    head.train_pvae(context)
    assert changed(head, before) == set()
    assert head.bank is None
    assert not context.logged
    head.start_adjustment(context)
    terms = head.loss(context.features, context.targets, "any")
    assert terms.keys() == {"bce", "loss"}
    assert torch.equal(terms["bce"], terms["loss"])


def test_start_representation_resets_later_stages():
    head, context = prepared()
    fresh = copy_of(head)
    for method in TRANSITIONS:
        getattr(head, method)(context)
    assert "augmented" in head.loss(context.features, context.targets, "any")
    head.start_representation(context)
    assert not changed(head, fresh) & {"prototypes", "support", "generates", "adjusting"}
    assert head.pending == ("train_pvae", "start_adjustment")
    assert head.loss(context.features, context.targets, "any").keys() == {"bce", "loss"}


def test_pending_transitions():
    head, context = prepared()
    expected = [("train_pvae", "start_adjustment"), ("train_pvae", "start_adjustment"), ("start_adjustment",), ()]
    assert head.pending == expected[0]
    for method, left in zip(TRANSITIONS, expected[1:], strict=True):
        getattr(head, method)(context)
        assert head.pending == left
    assert prepared(samples=0)[0].pending == ()


@pytest.mark.parametrize("transitions", [1, 3])
def test_progress_is_saved(transitions):
    head, context = prepared()
    for method in TRANSITIONS[:transitions]:
        getattr(head, method)(context)
    outer = nn.ModuleDict({"head": prepared(seed=1)[0]})  # inside another module
    outer.load_state_dict({f"head.{name}": value for name, value in head.state_dict().items()})
    other = outer["head"]
    assert other.pending == head.pending
    assert (other.has_prototypes, other.has_pvae, other.is_adjusting) == tuple(transitions > i for i in range(3))
    torch.manual_seed(0)
    terms = head.loss(context.features, context.targets, "any")
    torch.manual_seed(0)
    again = other.loss(context.features, context.targets, "any")
    assert terms.keys() == again.keys()
    assert all(torch.equal(value, again[name]) for name, value in terms.items())
    other.load_state_dict(prepared()[0].state_dict())
    assert other.pending == ("train_pvae", "start_adjustment")
    assert not other.has_prototypes


@pytest.mark.parametrize("settings", [{"latent": 3}, {"feat_dim": 4}])
def test_a_pvae_of_another_size_is_not_trained(settings):
    head, _ = adjusting()
    other, context = prepared(**settings)
    mine = other.state_dict()
    fitting = {name: value for name, value in head.state_dict().items() if mine[name].shape == value.shape}
    other.load_state_dict(fitting, strict=False)
    assert other.pending == ("train_pvae",)
    assert other.has_prototypes == ("feat_dim" not in settings)
    other.train_pvae(context)
    assert other.pending == ()


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"feat_dim": 0}, ["`feat_dim=0`"]),
        ({"head_count": 0}, ["`head_count=0`"]),
        ({"latent": 0}, ["`latent=0`"]),
        ({"pvae_hidden": 0}, ["`pvae_hidden=0`"]),
        ({"temperature": 0.0}, ["`temperature=0.0`"]),
        ({"psc_weight": -1.0}, ["`psc_weight=-1.0`"]),
        ({"psc_weight": float("nan")}, ["`psc_weight=nan`"]),
        ({"psc_start": -1}, ["`psc_start=-1`"]),
        ({"psc_every": 0}, ["`psc_every=0`"]),
        ({"samples": -1}, ["`samples=-1`"]),
        ({"augment_weight": -0.5}, ["`augment_weight=-0.5`"]),
        ({"bank_memory": -1.0}, ["`bank_memory=-1.0`"]),
        ({"negatives": 0}, ["`negatives=0`"]),
        ({"head_count": 31}, [31, "`head_count`", 30, "`samples=0`"]),
    ],
)
def test_invalid_settings_are_rejected(settings, names):
    with raises(UserError, *names):
        prepared(**settings)


def test_few_documents_and_labels():
    space = label_space([2, 1], 3)
    head = build(space, head_count=2, pvae=PVAETraining(epochs=1, patience=1))
    context = transition(documents(3), Targets.from_lists([[0], [0, 1], []]))
    for method in TRANSITIONS:
        getattr(head, method)(context)
    assert head.loss(context.features, context.targets, "any")["loss"].isfinite()
