"""The autoencoder of variations and its training."""

from __future__ import annotations

import math

import pytest
import torch

from datamodules.errors import UserError
from heads.pvae import PVAE, Pairs, PVAETraining, divergence, train_pvae
from tests.unit.httn import seeded

WIDTH = 4


def pairs(size=60, labels=3, seed=0):
    """Features that vary around the prototypes of their labels; all of them are to be trained on."""
    generator = seeded(seed)
    own = torch.randint(labels, (size,), generator=generator)
    prototypes = 1 + torch.rand(labels, WIDTH, generator=generator)
    features = (prototypes[own] + 0.3 * torch.randn(size, WIDTH, generator=generator)).relu()
    return Pairs(features, own, prototypes, torch.arange(size))


def small(seed=0, **settings):
    torch.manual_seed(seed)
    return PVAE(WIDTH, **{"hidden": 16, "latent": 3} | settings)


def trained(given, seed=0, pvae=None, total=torch.clone, **settings):
    pvae = pvae or small()
    training = PVAETraining(**{"epochs": 5, "batch_size": 8, "lr": 0.01} | settings)
    log = train_pvae(pvae, given, training, seeded(seed), lambda items, what: iter(items), total)
    return pvae, log


def same(one, other):
    return all(torch.equal(value, other.state_dict()[name]) for name, value in one.state_dict().items())


# --- parts of its loss


def test_divergence_by_hand():
    assert divergence(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, math.log(4)]])).item() == pytest.approx(1.306853)
    assert divergence(torch.zeros(3, 2), torch.zeros(3, 2)).item() == 0
    mixed = divergence(torch.tensor([[1.0, 0.0], [0.0, 0.0]]), torch.tensor([[0.0, math.log(4)], [0.0, 0.0]]))
    assert mixed.item() == pytest.approx(1.306853 / 2)


def test_divergence_is_that_of_torch():
    mu, logvar = torch.randn(2, 5, 3, generator=seeded())
    normal = torch.distributions.Normal
    kl = torch.distributions.kl_divergence(normal(mu, (logvar / 2).exp()), normal(torch.zeros(1), torch.ones(1)))
    assert divergence(mu, logvar).item() == pytest.approx(kl.sum(1).mean().item(), rel=1e-5)


def test_loss_equals_a_loop_over_pairs():
    pvae, given = small(), pairs(6)
    pvae.standardize(given.features)
    noise, terms = pvae.noise(6, seeded(1)), []
    for v, label, e in zip(given.features, given.labels, noise, strict=True):
        p = given.prototypes[label]
        inner = torch.cat([(v - pvae.mean) / pvae.deviation, (p - pvae.mean) / pvae.deviation])
        mu, logvar = pvae.encode(inner).split(3)
        z = mu + e * torch.sqrt(torch.exp(logvar))
        made = pvae.decode(torch.cat([z, (p - pvae.mean) / pvae.deviation])) * pvae.deviation + pvae.mean
        error = (((v - made.clamp_min(0)) / pvae.deviation) ** 2).mean()
        terms.append((error, (logvar.exp() + mu**2 - 1 - logvar).sum() / 2))
    error, kl = (sum(values) / 6 for values in zip(*terms, strict=True))
    loss, own_error = pvae.loss(given.features, given.prototypes[given.labels], noise, kl_weight=0.3)
    assert own_error.item() == pytest.approx(error.item(), rel=1e-5)
    assert loss.item() == pytest.approx((error + 0.3 * kl).item(), rel=1e-5)


def test_the_scale_of_features_does_not_change_the_loss():
    given, losses = pairs(), []
    for scale in (1.0, 1000.0):
        pvae = small()
        pvae.standardize(scale * given.features)
        vectors = scale * given.features, scale * given.prototypes[given.labels]
        losses.append(pvae.loss(*vectors, pvae.noise(60, seeded()), 0.1)[0].item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)


def test_log_variances_are_bounded():
    pvae = small()
    with torch.no_grad():
        pvae.encode[2].bias[3:] = torch.tensor([100.0, -100.0, 1.0])
    _, logvar = pvae.posterior(torch.zeros(2, WIDTH), torch.zeros(2, WIDTH))
    assert logvar[0, :2].tolist() == [10, -10]


@pytest.mark.parametrize("rectify", [True, False])
def test_features_are_made_of_noise_and_prototype(rectify):
    pvae = small(rectify=rectify)
    with torch.no_grad():
        pvae.decode[2].weight *= 500
    z, prototypes = pvae.noise(50, seeded()), torch.zeros(50, WIDTH)
    made = pvae.generate(z, prototypes)
    assert made.shape == (50, WIDTH)
    assert bool((made < 0).any()) != rectify
    assert not torch.equal(made, pvae.generate(z, prototypes + 1))
    assert not torch.equal(made, pvae.generate(z + 1, prototypes))


def test_a_dimension_that_never_varies_stays_finite():
    features = torch.rand(20, WIDTH, generator=seeded())
    features[:, 1] = 0.5
    pvae = small()
    pvae.standardize(features)
    assert torch.allclose(pvae.mean, features.mean(0))
    assert pvae.deviation[1] == pytest.approx(0.01 * features.std(0, correction=0).mean().item())
    pvae.standardize(torch.ones(1, WIDTH))
    assert (pvae.deviation == 1e-6).all()


def test_weights_begin_small_and_at_random():
    pvae = PVAE(300)
    for parameter in pvae.parameters():
        assert parameter.std().item() == pytest.approx(0.02, rel=0.15)
        assert abs(parameter.mean().item()) < 0.005


# --- training


def test_training_lowers_the_loss_and_ends_without_gradients():
    given = pairs()
    pvae, log = trained(given, epochs=40)
    assert log["loss"] < trained(given, epochs=1)[1]["loss"]
    assert 0 < log["error"] <= log["loss"]
    assert not any(p.requires_grad or p.grad is not None for p in pvae.parameters())


def test_a_seed_decides_everything():
    one, other = trained(pairs(), pvae=small(seed=0)), trained(pairs(), pvae=small(seed=1))
    assert same(one[0], other[0])
    assert one[1] == other[1]
    assert not same(one[0], trained(pairs(), seed=1)[0])


def test_it_can_be_trained_anew():
    pvae, _ = trained(pairs(seed=1))
    assert same(trained(pairs(), pvae=pvae)[0], trained(pairs())[0])


@pytest.mark.parametrize("patience", [1, 3])
def test_the_best_weights_stay_and_patience_ends_it(monkeypatch, patience):
    losses, states = iter([5.0, 3.0, 2.0, 4.0, 2.5, 2.0, 1.0]), []

    def measure(pvae, held_out, settings):
        states.append({name: value.clone() for name, value in pvae.state_dict().items()})
        return torch.tensor([next(losses), 0.5])

    monkeypatch.setattr("heads.pvae._measure", measure)
    pvae, log = trained(pairs(), epochs=7, patience=patience)
    assert len(states) == 3 + patience
    assert log == {"loss": 2.0, "error": 0.5, "epochs": 3.0}
    assert all(torch.equal(value, states[2][name]) for name, value in pvae.state_dict().items())


def seen_in(given, **settings):
    """Numbers of the pairs that training steps, and that measurements, have seen."""
    seen, pvae = {True: set(), False: set()}, small()
    loss = pvae.loss

    def noting(features, *args):
        rows = [(given.features == feature).all(1).nonzero().item() for feature in features]
        seen[torch.is_grad_enabled()].update(rows)
        return loss(features, *args)

    pvae.loss = noting
    with torch.no_grad():
        trained(given, pvae=pvae, **settings)
    return seen[True], seen[False]


def test_no_held_out_pair_is_trained_on():
    given = pairs()._replace(rows=torch.arange(10, 50))
    steps, measured = seen_in(given, held_out=0.25)
    assert len(measured) == 10
    assert not steps & measured
    assert steps | measured == set(range(10, 50))


@pytest.mark.parametrize(("size", "held_out"), [(1, 0.1), (1, 0.9), (4, 0.1), (30, 0.0)])
def test_where_none_can_be_held_out_all_pairs_are_trained_on_and_measured(size, held_out):
    steps, measured = seen_in(pairs()._replace(rows=torch.arange(size)), held_out=held_out)
    assert steps == measured == set(range(size))


def test_scale_is_that_of_the_pairs_trained_on():
    given = pairs()._replace(rows=torch.arange(20))
    pvae, _ = trained(given, held_out=0.0)
    assert torch.allclose(pvae.mean, given.features[:20].mean(0))
    assert torch.allclose(pvae.deviation, given.features[:20].std(0, correction=0))


def test_processes_decide_by_their_mean_loss():
    given = pairs()
    alone = trained(given)[1]

    def total(value):  # another process, whose loss is 1 more
        ones = bool((value == 1).all())
        return 2 * value + (0 if ones else 1)

    assert trained(given, total=total)[1]["loss"] == pytest.approx(alone["loss"] + 0.5)


def test_a_loss_that_is_not_finite_is_one_line():
    given = pairs()
    given.features[3] = math.inf
    with pytest.raises(UserError, match=r"not finite: lower its learning rate, --model\.head\.pvae\.lr"):
        trained(given)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epochs": 0}, r"--model\.head\.pvae\.epochs=0 is too low: the lowest is 1"),
        ({"batch_size": 0}, r"pvae\.batch_size=0 is too low"),
        ({"patience": 0}, r"pvae\.patience=0 is too low"),
        ({"lr": 0.0}, r"pvae\.lr=0\.0 is too low"),
        ({"kl_weight": -0.1}, r"pvae\.kl_weight=-0\.1 is too low: the lowest is 0"),
        ({"held_out": float("nan")}, r"pvae\.held_out=nan is too low"),
        ({"held_out": 1.0}, r"pvae\.held_out=1\.0 is too high: it must be below 1"),
    ],
)
def test_wrong_settings_are_one_line(settings, message):
    with pytest.raises(UserError, match=message) as error:
        PVAETraining(**settings)
    assert "\n" not in str(error.value)
