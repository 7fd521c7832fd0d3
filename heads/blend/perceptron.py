"""A small network as the ranker of a `Blend`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from zoo.core.errors import WIDEST, UserError, check_low, check_range, check_width

SAMPLE = 20_000  # pairs that importances are computed from


@dataclass(frozen=True)
class Network:
    """Settings of a multi-layer perceptron with the log loss.

    Args:
        hidden: widths of the hidden layers.
        epochs: passes over the pairs.
        step: learning rate of Adam.
        batch: number of pairs per step.
        weight_decay: weight decay of AdamW.
    """

    hidden: Sequence[int] = (64, 32)
    epochs: int = 12
    step: float = 2e-3
    batch: int = 2048
    weight_decay: float = 1e-4

    def __post_init__(self) -> None:
        for width in self.hidden:
            check_width(**{"ranker.hidden": width})
        if not self.hidden:
            raise UserError("`ranker.hidden=[]` needs at least one width")
        check_range(1, WIDEST, **{"ranker.epochs": self.epochs, "ranker.batch": self.batch})
        check_range(1e-9, 1, **{"ranker.step": self.step})
        check_low(0, **{"ranker.weight_decay": self.weight_decay})


class Perceptron(nn.Module):
    """Binary classifier of pairs: standardized features and their missing-value flags, and a few linear layers.

    Args:
        features: number of features.
        settings: settings of the fit.
    """

    mean: Tensor  # (features,)
    scale: Tensor  # (features,)
    done: Tensor  # bool
    shares: Tensor  # (features,) importances

    def __init__(self, features: int, settings: Network) -> None:
        super().__init__()
        self.features, self.settings = features, settings
        for name, value in (("mean", 0.0), ("scale", 1.0), ("shares", 0.0)):
            self.register_buffer(name, torch.full((features,), value))
        self.register_buffer("done", torch.tensor(False))
        widths = [2 * features, *settings.hidden, 1]
        self.layers = nn.ModuleList(nn.Linear(before, after) for before, after in pairwise(widths))
        self.requires_grad_(False)  # trained by `learn` alone, not by a stage

    @property
    def fitted(self) -> bool:
        return bool(self.done)

    def learn(self, inputs: np.ndarray, hits: np.ndarray, seed: int = 0) -> None:
        """Fit to inputs (pairs, features), NaN if missing, and hits (pairs,) 0 or 1."""
        x, y = (torch.from_numpy(part).float().to(self.mean.device) for part in (inputs, hits))
        settings = self.settings
        known = ~x.isnan()
        total = known.sum(0).clamp_min(1)
        self.mean.copy_(x.nan_to_num().sum(0) / total)
        variance = ((x - self.mean).square().nan_to_num() * known).sum(0) / total
        self.scale.copy_(variance.sqrt().clamp_min(1e-6))
        generator = torch.Generator().manual_seed(seed)
        parameters = list(self.layers.parameters())
        for parameter in parameters:
            bound = 1 / max(parameter.shape[-1], 1) ** 0.5
            parameter.copy_(bound * (2 * torch.rand(parameter.shape, generator=generator) - 1))
        steps = settings.epochs * -(-len(x) // settings.batch)
        with torch.enable_grad():
            for parameter in parameters:
                parameter.requires_grad_(True)
            optimizer = torch.optim.AdamW(parameters, lr=settings.step, weight_decay=settings.weight_decay)
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, settings.step, total_steps=steps)
            for _ in range(settings.epochs):
                for rows in torch.split(torch.randperm(len(x), generator=generator), settings.batch):
                    loss = F.binary_cross_entropy_with_logits(self._run(x[rows]), y[rows])
                    optimizer.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimizer.step()
                    schedule.step()
            self.shares.copy_(self._sensitivity(x[torch.randperm(len(x), generator=generator)[:SAMPLE]]))
        self.requires_grad_(False)
        self.done.fill_(True)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits (pairs,) in double precision, on the CPU; they depend on a pair alone."""
        return self._run(inputs.to(self.mean.device).double(), torch.float64).cpu()

    def _run(self, inputs: Tensor, kind: torch.dtype = torch.float32) -> Tensor:
        known = ~inputs.isnan()
        x = ((inputs - self.mean) / self.scale).nan_to_num().clamp(-10, 10)
        x = torch.cat([x, known.to(kind)], dim=1).to(kind)
        parameters = [parameter.to(kind) for parameter in self.layers.parameters()]
        for number, (weight, bias) in enumerate(zip(parameters[::2], parameters[1::2], strict=True)):
            x = F.linear(F.relu(x) if number else x, weight, bias)
        return x[:, 0]

    def _sensitivity(self, inputs: Tensor) -> Tensor:
        """Mean size of the gradient in each standardized feature, as shares."""
        inputs = inputs.clone().requires_grad_(True)
        (gradient,) = torch.autograd.grad(self._run(inputs).sum(), inputs)
        sizes = gradient.nan_to_num().abs().mean(0) * self.scale
        return sizes / sizes.sum().clamp_min(1e-12)

    def importances(self) -> Tensor:
        return self.shares
