"""Start training from the weights of another checkpoint where names and shapes match."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from zoo.core.console import note
from zoo.core.errors import UserError
from zoo.training.ranking_model import check_indices
from zoo.training.stored import check_tensor


def matches(name: str, value: Any, own: Any) -> bool:
    """Whether an entry of a state dict can be loaded."""
    if not isinstance(own, Tensor):
        return True
    try:
        check_tensor(name, value, own)
    except UserError:
        return False
    return True


def load_matching(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Load the weights whose name and shape match, and list the others in a note; extra states have no shape."""
    own = module.state_dict()
    matching = {name: value for name, value in weights.items() if name in own and matches(name, value, own[name])}
    module.load_state_dict(matching, strict=False)
    check_indices(module)
    if initial := [name for name in own if name not in matching]:
        note(f"not in the checkpoint, or of another shape, so they keep their initial values: {', '.join(initial)}")
