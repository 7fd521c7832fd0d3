"""The prototype-conditioned autoencoder and its training."""

import math

import pytest
import torch

from heads.augment.pvae import PVAE, Pairs, PVAETraining, divergence, train_pvae
from tests.support.errors import raises
from tests.support.httn import seeded
from zoo.core.errors import UserError

WIDTH = 4


def pairs(size=60, labels=3, seed=0):
    """Features that vary around the prototypes of their labels."""
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


def test_divergence_equals_torch():
    mu, logvar = torch.randn(2, 5, 3, generator=seeded())
    normal = torch.distributions.Normal
    kl = torch.distributions.kl_divergence(normal(mu, (logvar / 2).exp()), normal(torch.zeros(1), torch.ones(1)))
    assert divergence(mu, logvar).item() == pytest.approx(kl.sum(1).mean().item(), rel=1e-5)


def test_loss_equals_a_loop():
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


def test_loss_does_not_depend_on_the_scale_of_features():
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
def test_features_depend_on_noise_and_prototype(rectify):
    pvae = small(rectify=rectify)
    with torch.no_grad():
        pvae.decode[2].weight *= 500
    z, prototypes = pvae.noise(50, seeded()), torch.zeros(50, WIDTH)
    made = pvae.generate(z, prototypes)
    assert made.shape == (50, WIDTH)
    assert bool((made < 0).any()) != rectify
    assert not torch.equal(made, pvae.generate(z, prototypes + 1))
    assert not torch.equal(made, pvae.generate(z + 1, prototypes))


def test_constant_dimensions_stay_finite():
    features = torch.rand(20, WIDTH, generator=seeded())
    features[:, 1] = 0.5
    pvae = small()
    pvae.standardize(features)
    assert torch.allclose(pvae.mean, features.mean(0))
    assert pvae.deviation[1] == pytest.approx(0.01 * features.std(0, correction=0).mean().item())
    pvae.standardize(torch.ones(1, WIDTH))
    assert (pvae.deviation == 1e-6).all()


def test_training_lowers_the_loss():
    given = pairs()
    pvae, log = trained(given, epochs=40)
    assert log["loss"] < trained(given, epochs=1)[1]["loss"]
    assert 0 < log["error"] <= log["loss"]
    assert not any(p.requires_grad or p.grad is not None for p in pvae.parameters())


def test_training_follows_the_seed():
    one, other = trained(pairs(), pvae=small(seed=0)), trained(pairs(), pvae=small(seed=1))
    assert same(one[0], other[0])
    assert one[1] == other[1]
    assert not same(one[0], trained(pairs(), seed=1)[0])


def test_training_starts_from_new_weights():
    pvae, _ = trained(pairs(seed=1))
    assert same(trained(pairs(), pvae=pvae)[0], trained(pairs())[0])


@pytest.mark.parametrize("patience", [1, 3])
def test_the_best_weights_are_kept_and_patience_stops(monkeypatch, patience):
    losses, states = iter([5.0, 3.0, 2.0, 4.0, 2.5, 2.0, 1.0]), []

    def measure(pvae, held_out, settings):
        states.append({name: value.clone() for name, value in pvae.state_dict().items()})
        return torch.tensor([next(losses), 0.5])

    monkeypatch.setattr("heads.augment.pvae._measure", measure)
    pvae, log = trained(pairs(), epochs=7, patience=patience)
    assert len(states) == 3 + patience
    assert log == {"loss": 2.0, "error": 0.5, "epochs": 3.0}
    assert all(torch.equal(value, states[2][name]) for name, value in pvae.state_dict().items())


def seen_in(given, **settings):
    """Pairs seen in training steps and in evaluations."""
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


def test_held_out_pairs_are_not_trained_on():
    given = pairs()._replace(rows=torch.arange(10, 50))
    steps, measured = seen_in(given, held_out=0.25)
    assert len(measured) == 10
    assert not steps & measured
    assert steps | measured == set(range(10, 50))


@pytest.mark.parametrize(("size", "held_out"), [(1, 0.9), (4, 0.1), (30, 0.0)])
def test_all_pairs_are_used_if_none_can_be_held_out(size, held_out):
    steps, measured = seen_in(pairs()._replace(rows=torch.arange(size)), held_out=held_out)
    assert steps == measured == set(range(size))


def test_processes_stop_by_their_mean_loss():
    given = pairs()
    alone = trained(given)[1]

    def total(value):  # another process, whose loss is 1 more
        ones = bool((value == 1).all())
        return 2 * value + (0 if ones else 1)

    assert trained(given, total=total)[1]["loss"] == pytest.approx(alone["loss"] + 0.5)


def test_a_loss_that_is_not_finite_is_reported():
    given = pairs()
    given.features[3] = math.inf
    with raises(UserError, "`pvae.lr`"):
        trained(given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 0) for name in ("epochs", "batch_size", "patience", "lr")),
        *(("kl_weight", -0.1), ("held_out", float("nan")), ("held_out", 1.0)),
    ],
)
def test_invalid_settings_are_rejected(name, value):
    with raises(UserError, f"`pvae.{name}={value}`"):
        PVAETraining(**{name: value})
