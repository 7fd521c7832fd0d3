"""Integers in a checkpoint that an attacker may have changed: refused when they are loaded, or harmless."""

from __future__ import annotations

from functools import partial

import pytest
import torch

from backbones import BiLSTM, Words
from heads import Linear
from tests.contract.test_engines import ENGINES
from tests.contract.test_engines import Pair as EnginePair
from tests.contract.test_pairs import BACKBONES, HEADS, SPACE, Pair, build, check_ranking, documents, enter
from zoo.core.errors import UserError
from zoo.training.ranking_model import THRESHOLDS, RankingModel

INTEGERS = (torch.int32, torch.int64)
CHANGES = {
    "huge": lambda value: torch.full_like(value, 2**31 - 1),
    "negative": lambda value: torch.full_like(value, -7),
    "reversed": lambda value: value.flip(0) if value.ndim else value + 1,
    "shifted": lambda value: value + 3,
}


def model(backbone, head):
    """A `RankingModel` of two classes, without its transitions."""
    torch.manual_seed(0)
    return RankingModel(SPACE, lambda space: build(backbone, space), lambda dim, space: head(dim, space)).eval()


def integers(state, path=()):
    """Paths of all integer tensors in a state dict, those in extra states included."""
    for name, value in state.items():
        if isinstance(value, dict):
            yield from integers(value, (*path, name))
        elif isinstance(value, torch.Tensor) and value.dtype in INTEGERS and value.numel():
            yield (*path, name)


def changed(state, path, change):
    """A copy of a state dict with one other value."""
    first, *rest = path
    return {
        name: value if name != first else changed(value, rest, change) if rest else change(value.clone())
        for name, value in state.items()
    }


def check_all_changes(made, state):
    batch = documents()
    state = state | dict.fromkeys(THRESHOLDS, torch.tensor(0.5, dtype=torch.float64))
    made.load_weights(state)  # unchanged
    for path in integers(state):
        for change in CHANGES.values():
            try:
                made.load_weights(changed(state, path, change))
            except UserError:
                continue
            with torch.inference_mode():
                check_ranking(made.rank(batch, 4), len(batch), 4)


@pytest.mark.parametrize("head", HEADS, ids=lambda kind: kind.__name__)
def test_integers_of_a_head(head):
    pair = Pair(BiLSTM, head)
    enter(pair, documents())
    check_all_changes(model(BiLSTM, partial(build, head)), pair.state_dict())


@pytest.mark.parametrize("backbone", BACKBONES, ids=lambda kind: kind.__name__)
def test_integers_of_a_backbone(backbone):
    check_all_changes(model(backbone, partial(build, Linear)), Pair(backbone, Linear).state_dict())


@pytest.mark.parametrize("engine", ENGINES, ids=lambda kind: kind.__name__)
def test_integers_of_an_engine(engine):
    pair = EnginePair(Words, engine).fit(documents())
    check_all_changes(model(Words, partial(engine, min_documents=1)), pair.state_dict())
