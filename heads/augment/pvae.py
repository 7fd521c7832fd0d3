"""Prototype-based variational autoencoder (PVAE) of label-specific features.

Equation numbers are those of Xu et al. 2023 (see `PvaeAugmentor`).
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from zoo.core.errors import UserError, check_low, check_range

SAMPLE = 100_000  # pairs that the feature statistics are estimated from


class PVAE(nn.Module):
    """Encodes the variation z of a feature around its label's prototype, and decodes features from z (Eq. 11-15).

    Features are standardised, so that the weight of the KL divergence does not depend on their scale. The official code
    has batch normalization instead, with statistics of posterior samples that do not fit samples of the prior, and a
    ReLU on mu and log sigma.

    Args:
        width: width of features.
        hidden: width of the hidden layers.
        latent: width of z.
        rectify: apply a ReLU to generated features, if real ones are not negative either.
    """

    mean: Tensor  # (width,)
    deviation: Tensor  # (width,)

    def __init__(self, width: int, hidden: int = 512, latent: int = 300, rectify: bool = True) -> None:
        super().__init__()
        self.latent, self.rectify = latent, rectify
        self.encode = nn.Sequential(nn.Linear(2 * width, hidden), nn.LeakyReLU(), nn.Linear(hidden, 2 * latent))
        self.decode = nn.Sequential(nn.Linear(latent + width, hidden), nn.LeakyReLU(), nn.Linear(hidden, width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("deviation", torch.ones(width))
        self.reset()

    @torch.no_grad()
    def reset(self, generator: torch.Generator | None = None) -> None:
        for parameter in self.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)

    def noise(self, rows: int, generator: torch.Generator | None = None) -> Tensor:
        """Standard normal samples (rows, latent), the same on every device."""
        return torch.randn(rows, self.latent, generator=generator).to(self.mean.device)

    @torch.no_grad()
    def standardize(self, features: Tensor) -> None:
        """Estimate mean and standard deviation from a sample of features."""
        self.mean.copy_(features.mean(0))
        deviation = features.std(0, correction=0)
        # The lower bound keeps nearly constant dimensions from being blown up.
        self.deviation.copy_(deviation.clamp_min(max(0.01 * float(deviation.mean()), 1e-6)))

    def posterior(self, features: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        """mu and log sigma^2 of z, each (n, latent)."""
        encoded = self.encode(torch.cat([self._scaled(features), self._scaled(prototypes)], dim=-1))
        mu, logvar = encoded.chunk(2, dim=-1)
        return mu, logvar.clamp(-10, 10)

    def generate(self, z: Tensor, prototypes: Tensor) -> Tensor:
        """Decode features (n, width) from variations z around prototypes."""
        made: Tensor = self.decode(torch.cat([z, self._scaled(prototypes)], dim=-1))
        made = made * self.deviation + self.mean
        return made.relu() if self.rectify else made

    def loss(self, features: Tensor, prototypes: Tensor, noise: Tensor, kl_weight: float) -> tuple[Tensor, Tensor]:
        """Mean squared error of standardised features plus the weighted KL divergence (Eq. 16), and the error alone."""
        mu, logvar = self.posterior(features, prototypes)
        made = self.generate(mu + noise * (logvar / 2).exp(), prototypes)
        error = ((features - made) / self.deviation).square().mean()
        return error + kl_weight * divergence(mu, logvar), error

    def _scaled(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.deviation


def divergence(mu: Tensor, logvar: Tensor) -> Tensor:
    """KL(N(mu, sigma^2) || N(0, 1)), summed over dimensions, averaged over rows."""
    return -0.5 * (1 + logvar - logvar.exp() - mu.square()).sum(-1).mean()


@dataclass
class PVAETraining:
    """Training of the PVAE.

    Args:
        epochs: maximum number of epochs.
        batch_size: pairs per step.
        lr: learning rate of Adam.
        kl_weight: weight of the KL divergence (beta).
        patience: early stopping, in epochs without a lower loss on held-out pairs.
        held_out: share of the pairs that are held out.
    """

    epochs: int = 100
    batch_size: int = 40
    lr: float = 1e-4
    kl_weight: float = 0.005
    patience: int = 10
    held_out: float = 0.1

    def __post_init__(self) -> None:
        check_low(1, **{f"pvae.{name}": getattr(self, name) for name in ("epochs", "batch_size", "patience")})
        check_low(0, **{"pvae.kl_weight": self.kl_weight})
        check_range(0, 1, **{"pvae.held_out": self.held_out})
        check_low(1e-9, **{"pvae.lr": self.lr})
        if self.held_out == 1:
            raise UserError(f"`pvae.held_out={self.held_out}` is too high: it must be below 1")


class Pairs(NamedTuple):
    """Features with the prototypes of their labels."""

    features: Tensor  # (all pairs, width), on the CPU
    labels: Tensor  # (all pairs,)
    prototypes: Tensor  # (num_labels, width), on the training device
    rows: Tensor  # (n,) pairs that are used

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and prototypes, each (size, width)."""
        for rows in torch.split(self.rows, size):
            device = self.prototypes.device
            yield self.features[rows].to(device), self.prototypes[self.labels[rows].to(device)]


def train_pvae(
    pvae: PVAE,
    pairs: Pairs,
    settings: PVAETraining,
    generator: torch.Generator,
    track: Callable[[Iterable[int], str], Iterator[int]],
    total: Callable[[Tensor], Tensor],
) -> dict[str, float]:
    """Train from scratch (Eq. 17) and keep the weights with the lowest loss on held-out pairs; returns what to log.

    All processes train on the same pairs. The losses are all-reduced (`total`), so that all stop at the same epoch.
    """
    order = pairs.rows[torch.randperm(len(pairs.rows), generator=generator)]
    size = round(settings.held_out * len(order))
    # Very few pairs serve both purposes.
    trained, measured = (order[size:], order[:size]) if 0 < size < len(order) else (order, order)
    pvae.standardize(pairs.features[trained[:SAMPLE]])
    pvae.reset(generator)
    pvae.requires_grad_(True)
    optimizer = torch.optim.Adam(pvae.parameters(), lr=settings.lr, fused=True)
    best, state, log, waited = math.inf, pvae.state_dict(), {}, 0
    for epoch in track(range(settings.epochs), "training the PVAE"):
        shuffled = trained[torch.randperm(len(trained), generator=generator)]
        with torch.enable_grad():
            for features, prototypes in pairs._replace(rows=shuffled).batches(settings.batch_size):
                noise = pvae.noise(len(features), generator)
                loss, _ = pvae.loss(features, prototypes, noise, settings.kl_weight)
                optimizer.zero_grad()
                torch.autograd.backward(loss)
                optimizer.step()
        here = _measure(pvae, pairs._replace(rows=measured), settings)
        value, error = (total(here) / total(torch.ones_like(here))).tolist()
        waited += 1
        if value < best:
            best, state, waited = value, copy.deepcopy(pvae.state_dict()), 0
            log = {"loss": value, "error": error, "epochs": epoch + 1.0}
        if waited >= settings.patience:
            break
    if not log:
        raise UserError(f"the loss of the PVAE is not finite at a learning rate of {settings.lr}: lower `pvae.lr`")
    pvae.load_state_dict(state)
    pvae.requires_grad_(False).zero_grad()
    return log


@torch.no_grad()
def _measure(pvae: PVAE, pairs: Pairs, settings: PVAETraining) -> Tensor:
    """Mean loss and error of pairs, (2,), always with the same noise."""
    generator, sums = torch.Generator().manual_seed(0), torch.zeros(2, device=pvae.mean.device)
    for features, prototypes in pairs.batches(4096):
        noise = pvae.noise(len(features), generator)
        sums += len(features) * torch.stack(pvae.loss(features, prototypes, noise, settings.kl_weight))
    return sums / len(pairs.rows)
