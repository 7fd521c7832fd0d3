"""Training of embeddings with sparse gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed
from pytorch_lightning import LightningModule
from torch import Tensor, nn
from torch.optim.optimizer import ParamsT

from zoo.core.errors import UserError, check_low, check_range
from zoo.core.lightning_internals import allow_clipping

ROWS_PER_BLOCK = {"cpu": 1024}  # updated at a time, so that they stay in the cache; by default all


class RowAdam(torch.optim.AdamW):
    """AdamW that, for sparse gradients, updates only the rows that have a gradient.

    The moments of all other rows stay as they are, and these rows do not decay. The cost of a step is proportional to
    the number of rows with a gradient.

    Args:
        params: parameters, with dense or sparse gradients.
        lr: learning rate.
        betas: decay rates of the running averages of the gradient and its square.
        eps: added to the denominator.
        weight_decay: decoupled weight decay; 0 makes this Adam.
        fused: use the fused kernel for parameters with dense gradients.
    """

    supports_sparse = True  # `check_optimizer` accepts any class with this attribute

    def __init__(
        self,
        params: ParamsT,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        fused: bool = False,
    ) -> None:
        check_low(0, lr=lr, eps=eps, weight_decay=weight_decay)
        for beta in betas:
            check_range(0, 1, betas=beta)
        # None lets torch choose the fastest implementation; False would force a loop over parameters.
        super().__init__(params, lr, betas, eps, weight_decay, fused=fused or None)
        allow_clipping(self)  # also: the fused kernel would unscale dense gradients only

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if refused := [name for name in ("amsgrad", "maximize") if param_group.get(name)]:
            raise ValueError(f"RowAdam does not support {refused[0]}")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        with torch.enable_grad():
            loss = closure() if closure else None
        sparse = [(group, p, p.grad) for group in self.param_groups for p in group["params"] if has_sparse_gradient(p)]
        for _, parameter, _ in sparse:
            parameter.grad = None
        try:
            super().step()  # AdamW refuses sparse gradients
        finally:
            for _, parameter, gradient in sparse:
                parameter.grad = gradient
        for group, parameter, gradient in sparse:
            self._update_rows(group, parameter, gradient.coalesce())
        return loss

    def _update_rows(self, group: dict[str, Any], parameter: nn.Parameter, gradient: Tensor) -> None:
        state = self.state[parameter] or self._init_state(group, parameter)
        state["step"] += 1
        step, lr, (beta1, beta2) = float(state["step"]), float(group["lr"]), group["betas"]
        size, scale = lr / (1 - beta1**step), math.sqrt(1 - beta2**step)
        block = ROWS_PER_BLOCK.get(parameter.device.type, len(parameter))
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

    def _init_state(self, group: dict[str, Any], parameter: nn.Parameter) -> dict[str, Tensor]:
        """Create the same state as AdamW: in another step the gradient may be dense."""
        on_device = group["fused"] or group["capturable"]
        state: dict[str, Tensor] = self.state[parameter]
        state["step"] = torch.zeros((), dtype=torch.float32, device=parameter.device if on_device else "cpu")
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


def has_sparse_gradient(parameter: Tensor) -> bool:
    return parameter.grad is not None and parameter.grad.is_sparse


def sparse_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the weights of embeddings with `sparse=True`; a shared weight under each of its names."""
    embeddings = [part for part in module.modules() if isinstance(part, nn.Embedding | nn.EmbeddingBag)]
    weights = {part.weight for part in embeddings if part.sparse}
    return {name: p for name, p in module.named_parameters(remove_duplicate=False) if p in weights}


def check_optimizer(optimizer: torch.optim.Optimizer, sparse: dict[str, nn.Parameter], option: str) -> None:
    """Refuse an optimizer that cannot train sparse gradients; `option` is the setting that selects it."""
    if getattr(optimizer, "supports_sparse", False):
        return
    for group in optimizer.param_groups:
        name, refused = type(optimizer).__name__, True
        if isinstance(optimizer, torch.optim.SGD):
            # Momentum would be a sparse tensor that grows with each step.
            keys = [key for key in ("momentum", "weight_decay", "fused") if group.get(key)]
            name, refused = f"{name} with {' and '.join(keys)}", bool(keys)
        trained = set(group["params"])
        found = [path for path, weight in sparse.items() if weight in trained]
        if not refused or not found:
            continue
        kind, alternative = "label", "raise `head.sparse_above`"
        if found[0].startswith("backbone."):
            kind, alternative = "word", "set `backbone.sparse=false`"
        raise UserError(
            f"the {kind} embeddings have sparse gradients, which {name} does not support: "
            f"choose `{option}=RowAdam`, or {alternative}"
        )


def check_dense_parameters(trained: dict[str, nn.Parameter], sparse: dict[str, nn.Parameter], stage: str) -> None:
    """Refuse a stage without dense gradients on several processes: DDP needs one to reduce."""
    if trained and trained.keys() <= sparse.keys():
        raise UserError(
            f"stage {stage!r} trains only {', '.join(trained)}, with sparse gradients: on several processes it must "
            "train something else too"
        )


def average_sparse_gradients_after(closure: Callable[[], Any], module: LightningModule) -> Callable[[], Any]:
    """Wrap a closure that runs backward: DDP averages only dense gradients over processes."""

    def averaging() -> Any:
        loss = closure()
        trained = (p for p in sparse_parameters(module).values() if p.requires_grad)
        average_sparse_gradients(trained, module.trainer.world_size)
        return loss

    return averaging


@torch.no_grad()
def average_sparse_gradients(parameters: Iterable[nn.Parameter], world: int) -> None:
    """Average sparse gradients over all processes; the result is bit-identical on each.

    NCCL cannot send sparse tensors, so rows and values are sent as dense ones. A process without a gradient sends no
    rows.
    """
    shared = list(dict.fromkeys(parameters))
    if not shared:
        return
    own = [rows_and_values(parameter) for parameter in shared]
    own_sizes = torch.tensor([len(rows) for rows, _ in own], device=shared[0].device)
    all_sizes = torch.stack(all_gather(own_sizes, world)).T.tolist()  # (parameters, processes)
    for parameter, pair, sizes in zip(shared, own, all_sizes, strict=True):
        parameter.grad = None
        if longest := max(sizes):
            gathered = (all_gather(pad_to(tensor, longest), world) for tensor in pair)
            rows, values = (torch.cat([t[:size] for t, size in zip(g, sizes, strict=True)]) for g in gathered)
            # Not with `index_add_`, whose order of summation is undefined on a GPU.
            total = torch.sparse_coo_tensor(rows[None], values, parameter.shape, check_invariants=False)
            parameter.grad = total.coalesce()
            parameter.grad._values().div_(world)


def rows_and_values(parameter: nn.Parameter) -> tuple[Tensor, Tensor]:
    """Return the row indices of a sparse gradient, without duplicates, and their values."""
    if parameter.grad is None:
        rows = torch.empty(0, dtype=torch.int64, device=parameter.device)
        return rows, parameter.new_empty(0, *parameter.shape[1:])
    if not parameter.grad.is_sparse:
        raise RuntimeError("the weight of an embedding with sparse=True has a dense gradient: it is used elsewhere too")
    gradient = parameter.grad.coalesce()
    return gradient._indices()[0], gradient._values()


def pad_to(tensor: Tensor, size: int) -> Tensor:
    padded = tensor.new_zeros(size, *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    return padded


def all_gather(tensor: Tensor, world: int) -> list[Tensor]:
    gathered = [torch.empty_like(tensor) for _ in range(world)]
    torch.distributed.all_gather(gathered, tensor)
    return gathered


def clip_gradients(parameters: Iterable[Tensor], limit: float, algorithm: str) -> None:
    """Clip dense and sparse gradients by their common norm or by value; a limit of 0 disables clipping."""
    if limit <= 0:
        return
    tensors = []
    for parameter in parameters:
        if has_sparse_gradient(parameter):
            # torch clips dense gradients only: give it a dense stand-in that shares the values of the sparse one.
            assert parameter.grad is not None
            parameter.grad = parameter.grad.coalesce()  # the norm of duplicate rows would be too small
            values = parameter.grad._values()
            parameter = values.detach()
            parameter.grad = values
        tensors.append(parameter)
    if algorithm == "value":
        torch.nn.utils.clip_grad_value_(tensors, limit)
    else:
        torch.nn.utils.clip_grad_norm_(tensors, limit)
