"""A variational autoencoder of a label's features around their mean."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from datamodules.errors import UserError
from heads.base import check_low

SAMPLE = 100_000  # pairs that show the scale of features


class PVAE(nn.Module):
    """Encodes how a feature differs from its label's prototype, and makes features of such variations (Eq. 11-15).

    Works on features of zero mean and unit deviation, as `standardize` finds them: the weight of the divergence then
    means the same whatever their scale. (The original has batch normalisation instead, whose statistics come from
    the encoder's samples but serve those of the prior; it also makes mu and log sigma non-negative.)

    Args:
        width: of features.
        hidden: of the layers between.
        latent: of the variation z.
        rectify: features are never negative, so are those that it makes.
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
        """Standard normal (rows, latent), the same numbers on any device."""
        return torch.randn(rows, self.latent, generator=generator).to(self.mean.device)

    @torch.no_grad()
    def standardize(self, features: Tensor) -> None:
        """Take the scale of features from a sample of them."""
        self.mean.copy_(features.mean(0))
        deviation = features.std(0, correction=0)
        # a dimension that hardly varies must not blow up what little it does
        self.deviation.copy_(deviation.clamp_min(max(0.01 * float(deviation.mean()), 1e-6)))

    def posterior(self, features: Tensor, prototypes: Tensor) -> tuple[Tensor, Tensor]:
        """mu and log sigma^2 of z, each (n, latent)."""
        encoded = self.encode(torch.cat([self._scaled(features), self._scaled(prototypes)], dim=-1))
        mu, logvar = encoded.chunk(2, dim=-1)
        return mu, logvar.clamp(-10, 10)

    def generate(self, z: Tensor, prototypes: Tensor) -> Tensor:
        """Features (n, width) of variations z around prototypes."""
        made: Tensor = self.decode(torch.cat([z, self._scaled(prototypes)], dim=-1))
        made = made * self.deviation + self.mean
        return made.relu() if self.rectify else made

    def loss(self, features: Tensor, prototypes: Tensor, noise: Tensor, kl_weight: float) -> tuple[Tensor, Tensor]:
        """Mean squared error of the standardised features plus the weighted divergence (Eq. 16), and that error."""
        mu, logvar = self.posterior(features, prototypes)
        made = self.generate(mu + noise * (logvar / 2).exp(), prototypes)
        error = ((features - made) / self.deviation).square().mean()
        return error + kl_weight * divergence(mu, logvar), error

    def _scaled(self, features: Tensor) -> Tensor:
        return (features - self.mean) / self.deviation


def divergence(mu: Tensor, logvar: Tensor) -> Tensor:
    """KL of N(mu, sigma^2) from N(0, 1): summed over dimensions, averaged over rows."""
    return -0.5 * (1 + logvar - logvar.exp() - mu.square()).sum(-1).mean()


@dataclass
class PVAETraining:
    """How a PVAE is trained.

    Args:
        epochs: at most so many passes over the pairs.
        batch_size: pairs in a step.
        lr: learning rate of Adam.
        kl_weight: of the divergence (beta).
        patience: epochs without a smaller loss on held-out pairs after which it ends.
        held_out: share of the pairs that measure it.
    """

    epochs: int = 100
    batch_size: int = 40
    lr: float = 1e-4
    kl_weight: float = 0.005
    patience: int = 10
    held_out: float = 0.1

    def __post_init__(self) -> None:
        at_least_one = {f"pvae.{name}": getattr(self, name) for name in ("epochs", "batch_size", "patience")}
        check_low(1, **at_least_one)
        check_low(0, **{"pvae.kl_weight": self.kl_weight, "pvae.held_out": self.held_out})
        check_low(1e-9, **{"pvae.lr": self.lr})
        if self.held_out >= 1:
            raise UserError(f"--model.head.pvae.held_out={self.held_out} is too high: it must be below 1")


class Pairs(NamedTuple):
    """Features with the prototypes of their labels."""

    features: Tensor  # (all pairs, width), where they are kept
    labels: Tensor  # (all pairs,)
    prototypes: Tensor  # (num_labels, width), where training is
    rows: Tensor  # (n,) which of all pairs

    def batches(self, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Features and prototypes, each (size, width)."""
        for rows in self.rows.split(size):  # type: ignore[no-untyped-call]
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
    """Train anew (Eq. 17); the weights with the smallest loss on held-out pairs stay. Returns how it went.

    All processes do the same with the same pairs; `total`, a sum over them, keeps them of one mind when to stop.
    """
    order = pairs.rows[torch.randperm(len(pairs.rows), generator=generator)]
    size = round(settings.held_out * len(order))
    # very few pairs are trained on and measured alike
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
                loss.backward()  # type: ignore[no-untyped-call]
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
        raise UserError("the loss of the PVAE is not finite: lower its learning rate, --model.head.pvae.lr")
    pvae.load_state_dict(state)
    pvae.requires_grad_(False).zero_grad()
    return log


@torch.no_grad()
def _measure(pvae: PVAE, pairs: Pairs, settings: PVAETraining) -> Tensor:
    """Mean loss and error of pairs, (2,), with the same noise whenever it is called."""
    generator, sums = torch.Generator().manual_seed(0), torch.zeros(2, device=pvae.mean.device)
    for features, prototypes in pairs.batches(4096):
        noise = pvae.noise(len(features), generator)
        sums += len(features) * torch.stack(pvae.loss(features, prototypes, noise, settings.kl_weight))
    return sums / len(pairs.rows)
