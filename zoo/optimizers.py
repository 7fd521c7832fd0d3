"""Training of embeddings of which a step needs a few rows: their gradients are sparse."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from datamodules.errors import UserError

ROWS = {"cpu": 1024}  # that are moved at a time: few enough for a processor's cache


class RowAdam(torch.optim.AdamW):
    """Adam that moves only the rows which have a gradient, where gradients are sparse; elsewhere it is AdamW.

    The other rows keep their moments too, and do not decay: a step costs what its rows do, however many there are.

    Args:
        params: what is trained.
        lr: learning rate.
        betas: how much of the gradient's and its square's averages a step keeps.
        eps: added to the denominator.
        weight_decay: decoupled from the gradient; without it this is Adam.
        fused: take one kernel for all that has no sparse gradient.
    """

    takes_rows = True  # an optimizer of another class that can should say so too

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        fused: bool = False,
    ) -> None:
        # None lets torch choose what is fast, False would be a loop over parameters
        super().__init__(params, lr, betas, eps, weight_decay, fused=fused or None)
        # A fused one takes scaled gradients, and those of rows would stay scaled.
        self._step_supports_amp_scaling = False

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if refused := [name for name in ("amsgrad", "maximize") if param_group.get(name)]:
            raise ValueError(f"RowAdam has no {refused[0]}")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure else None
        sparse = [(group, p, p.grad) for group in self.param_groups for p in group["params"] if has_rows(p)]
        for _, parameter, _ in sparse:
            parameter.grad = None
        try:
            super().step()  # AdamW would refuse them
        finally:
            for _, parameter, gradient in sparse:
                parameter.grad = gradient
        for group, parameter, gradient in sparse:
            self._move_rows(group, parameter, gradient.coalesce())
        return loss

    def _move_rows(self, group: dict[str, Any], parameter: nn.Parameter, gradient: Tensor) -> None:
        state = self.state[parameter] or self._begin(group, parameter)
        state["step"] += 1
        step, lr, (beta1, beta2) = float(state["step"]), float(group["lr"]), group["betas"]
        size, scale = lr / (1 - beta1**step), math.sqrt(1 - beta2**step)
        block = ROWS.get(parameter.device.type, len(parameter))
        blocks = (torch.split(part, block) for part in (gradient._indices()[0], gradient._values()))
        for rows, values in zip(*blocks, strict=True):
            parts = (state["exp_avg"], state["exp_avg_sq"], parameter)
            mean, square, weights = (part.index_select(0, rows) for part in parts)
            mean.add_((values - mean).mul_(1 - beta1))
            square.add_(values.square().sub_(square).mul_(1 - beta2))
            state["exp_avg"].index_copy_(0, rows, mean)
            state["exp_avg_sq"].index_copy_(0, rows, square)
            weights.mul_(1 - lr * group["weight_decay"])
            weights.sub_(mean.div_(square.sqrt_().div_(scale).add_(group["eps"])).mul_(size))
            parameter.index_copy_(0, rows, weights)

    def _begin(self, group: dict[str, Any], parameter: nn.Parameter) -> dict[str, Tensor]:
        """A state as Adam's: the parameter may have a dense gradient another time."""
        on_device = group["fused"] or group["capturable"]
        state: dict[str, Tensor] = self.state[parameter]
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else "cpu")
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


def has_rows(parameter: Tensor) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse


def row_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Weights that get sparse gradients, by all of their names."""
    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    weights = {part.weight for part in embeddings if part.sparse}
    return {name: p for name, p in module.named_parameters(remove_duplicate=False) if p in weights}


def check_optimizer(optimizer: torch.optim.Optimizer, rows: dict[str, nn.Parameter], option: str) -> None:
    """Refuse one that cannot train what has sparse gradients; `option` chooses another."""
    if getattr(optimizer, "takes_rows", False):
        return
    name = type(optimizer).__name__
    for group in optimizer.param_groups:
        # The momentum of rows would be a sparse tensor that has more of them after each step.
        refused = [key for key in ("momentum", "weight_decay", "fused") if group.get(key)]
        plain = isinstance(optimizer, torch.optim.SGD) and not refused
        trained = set(group["params"])
        if plain or not (found := [path for path, weight in rows.items() if weight in trained]):
            continue
        which = f"{name} with {refused[0]}" if isinstance(optimizer, torch.optim.SGD) else name
        what, mend = "label", "raise --model.head.sparse_above"
        if found[0].startswith("backbone."):
            what, mend = "word", "give --model.backbone.sparse=false"
        have = f"the {what} embeddings have sparse gradients"
        raise UserError(f"{have}, which {which} cannot take: choose {option}=RowAdam, or {mend}")


def check_others(trained: dict[str, nn.Parameter], rows: dict[str, nn.Parameter], stage: str) -> None:
    """DDP cannot be made where it has nothing to reduce."""
    if trained and trained.keys() <= rows.keys():
        raise UserError(
            f"stage {stage!r} trains only {', '.join(trained)}, with sparse gradients: on several processes it must "
            "train something else too"
        )


def sharing(module: LightningModule, closure: Callable[[], Any]) -> Callable[[], Any]:
    """A closure after which the rows' gradients are those of all processes, as the others are by DDP."""

    def shared() -> Any:
        loss = closure()
        share_rows((p for p in row_parameters(module).values() if p.requires_grad), module.trainer.world_size)
        return loss

    return shared


@torch.no_grad()
def share_rows(parameters: Iterable[nn.Parameter], world: int) -> None:
    """Give sparse gradients their mean over all processes, the same to the last bit on each.

    Only dense tensors are sent, for NCCL takes no others. Who has no gradient adds no rows.
    """
    shared = list(dict.fromkeys(parameters))
    if not shared:
        return
    mine = [rows_and_values(parameter) for parameter in shared]
    numbers = torch.tensor([len(rows) for rows, _ in mine], device=shared[0].device)
    counts = torch.stack(gathered(numbers, world)).T.tolist()
    for parameter, (rows, values), sizes in zip(shared, mine, counts, strict=True):
        parameter.grad = None
        if longest := max(sizes):
            parts = (gathered(padded(part, longest), world) for part in (rows, values))
            every = [torch.cat([part[:size] for part, size in zip(p, sizes, strict=True)]) for p in parts]
            # Not by `index_add_`, which on a GPU adds in any order.
            total = torch.sparse_coo_tensor(every[0][None], every[1], parameter.shape, check_invariants=False)
            parameter.grad = total.coalesce()
            parameter.grad._values().div_(world)


def rows_and_values(parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
    """Row numbers of a sparse gradient, each once, and what they hold."""
    if parameter.grad is None:
        rows = torch.empty(0, dtype=torch.int64, device=parameter.device)
        return rows, parameter.new_empty(0, *parameter.shape[1:])
    if not parameter.grad.is_sparse:
        raise RuntimeError("the weight of an embedding with sparse=True is used elsewhere too: its gradient is dense")
    gradient = parameter.grad.coalesce()
    return gradient._indices()[0], gradient._values()


def padded(part: Tensor, size: int) -> Tensor:
    longer = part.new_zeros(size, *part.shape[1:])
    longer[: len(part)] = part
    return longer


def gathered(part: Tensor, world: int) -> list[Tensor]:
    parts = [torch.empty_like(part) for _ in range(world)]
    torch.distributed.all_gather(parts, part)
    return parts


def clippable(parameters: Iterable[Tensor]) -> list[Tensor]:
    """For `torch.nn.utils.clip_grad_*`, which know no sparse gradients: in place of those their rows, to be changed."""
    tensors = []
    for parameter in parameters:
        if has_rows(parameter):
            assert parameter.grad is not None
            parameter.grad = parameter.grad.coalesce()  # a row that is there twice would be two small ones
            values = parameter.grad._values()
            parameter = values.detach()
            parameter.grad = values
        tensors.append(parameter)
    return tensors


def clip(parameters: Iterable[Tensor], limit: float, algorithm: str) -> None:
    """Clip gradients, sparse ones among them, by their common norm or each value by itself; not with a limit of 0."""
    if limit <= 0:
        return
    tensors = clippable(parameters)
    if algorithm == "value":
        torch.nn.utils.clip_grad_value_(tensors, limit)
    else:
        torch.nn.utils.clip_grad_norm_(tensors, limit)
