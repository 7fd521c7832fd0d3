"""Every numeric setting refuses NaN, infinite and absurd values, by name and before it allocates anything."""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pkgutil import resolve_name
from types import UnionType
from typing import Any, NamedTuple, Union, get_args, get_origin, get_type_hints

import pytest
import torch

from backbones import Bow
from datamodules.batch import LabelSpace
from heads import Linear
from tests.support.documents import label_space
from zoo.commands.catalog import KINDS
from zoo.commands.main import COMMANDS
from zoo.commands.static_index import PACKAGES, concrete_classes
from zoo.core.errors import UserError

SPACE = label_space([60, 3, 2, 1], vocab_size=6)  # some methods need labels with 50 documents
REQUIRED: dict[str, Any] = {  # by name of the parameter
    **{"dim": 8, "space": SPACE, "backbone": Bow, "encoder": Bow, "num_documents": 5},
    **dict.fromkeys(("inner", "head", "tail"), Linear),
    "members": {"one": Linear},
    **dict.fromkeys(("engine",), lambda dim, space: Linear(dim, space)),
    **{"params": [torch.nn.Parameter(torch.zeros(1))], "optimizer": None, "stages": None},
    **dict.fromkeys(
        ("train", "dataset", "title", "ckpt", "input", "source", "target", "path", "stage", "name"), "sample"
    ),
    **{
        "out": "missing/folder",
        "folder": None,
        "schedule": None,
        "runs": ["missing"],
        "kind": "cls",
        "format": ".parquet",
    },
}
VALUES = (math.nan, math.inf, -math.inf, -1e308, -1, 0, 1e308, 10**12, 2**64, "many")
ZERO = {  # settings that can be 0, by name
    *("dropout", "embed_dropout", "word_dropout", "blocks", "lead", "prune", "exponent", "allowed_loss", "held_back"),
    *("held_out", "fraction", "copies", "seed", "num_workers", "max_bad_rows", "propensity_a", "every_n_train_steps"),
    *("gamma", "alpha", "beta", "betas", "gamma_pos", "gamma_neg", "margin", "mu", "bias_scale", "mix", "kl_weight"),
    *("cluster_weight", "path_weight", "sparse_above", "diversity", "max_kl", "attention_weight", "psc_weight"),
    *(
        "psc_start",
        "samples",
        "augment_weight",
        "bank_memory",
        "margin_weight",
        "lr",
        "eps",
        "weight_decay",
        "centroid_weight",
    ),
    *("warmup", "start", "end", "epochs", "gradient_clip_val", "patience", "average_from", "clusters", "labels"),
    *("port", "max_wait", "threads"),  # of the service
    *("threshold", "near", "tail_labels", "normalize", "learned_exponent", "l2", "weight"),
    *("random_negatives", "hard_negatives", "siblings", "approximate_above"),
    *("line_mb", "text_mb", "unpacked_gb", "ratio", "members", "download_gb"),  # of Limits
}
POSITIVE = {  # settings that cannot be 0, unlike others of the same name
    "PVAETraining": {"epochs", "patience", "lr"},
    "BBN": {"epochs"},
    "Boosting": {"lr"},
    "LabelWords": {"lead"},
    "Neighbours": {"lead"},
    "Network": {"epochs"},
    "RankNetTraining": {"lr"},
    "Rerank": {"held_out"},
    "TreeSettings": {"clusters"},
    "PrototypeTransfer": {"members"},
}
NEGATIVE = {  # settings that can be -1
    ("Rerank", "learned_exponent"),
    ("rerank", "learned_exponent"),
    ("DistributionBalanced", "mu"),
    ("ExpertSettings", "layer"),
    ("ExpertSettings", "further_layers"),
}
ANY = {("PvaeAugmentor", "bank_memory", 10**12)}  # bytes


class Setting(NamedTuple):
    """A numeric parameter of a class or a command."""

    owner: Callable[..., Any]
    name: str
    kind: type  # int or float
    is_list: bool

    def __str__(self) -> str:
        return f"{self.owner.__name__}.{self.name}"

    def is_legal(self, value: Any) -> bool:
        place = self.owner.__name__, self.name
        if value == 0:
            return self.name in ZERO and self.name not in POSITIVE.get(place[0], ())
        return (value == -1 and place in NEGATIVE) or (*place, value) in ANY


def leaves(hint: Any) -> Iterator[Any]:
    """Types of a value, or of the items of a sequence; without the arguments of callables."""
    if get_origin(hint) in (Union, UnionType, list, tuple, Sequence):
        for inner in get_args(hint):
            yield from leaves(inner)
    else:
        yield hint


def is_sequence(hint: Any) -> bool:
    return get_origin(hint) in (list, tuple, Sequence)


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of a function's parameters, or of a constructor's, with those that go to a base class."""
    if not inspect.isclass(function):
        return parameters_with_hints(function)
    found: dict[str, Any] = {}
    for base in function.__mro__:
        if "__init__" in vars(base) and base.__module__.split(".")[0] in PACKAGES:
            own = parameters_with_hints(base.__init__)
            found = own | found
            if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(base.__init__).parameters.values()):
                break
    return found


def parameters_with_hints(function: Callable[..., Any]) -> dict[str, Any]:
    hints = get_type_hints(function, vars(inspect.getmodule(function)) | {"LabelSpace": LabelSpace})
    parameters = inspect.signature(function).parameters.values()
    named = [p.name for p in parameters if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and p.name != "self"]
    return {name: hints[name] for name in named if name in hints}


def needed(function: Callable[..., Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    names = [p.name for p in parameters if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
    found = {name: REQUIRED[name] for name in names}
    if "optimizer" in found:
        found["optimizer"] = torch.optim.SGD(REQUIRED["params"], lr=1.0)
    return found


def owners() -> Iterator[Callable[..., Any]]:
    """Classes of all kinds, dataclasses that are settings of them, and commands."""
    classes = [resolve_name(one.path) for kind in KINDS.values() for one in concrete_classes(*kind)]
    classes.append(resolve_name("zoo.training.module:ZooModule"))
    inner = [kind for one in classes for hint in parameters_of(one).values() for kind in leaves(hint)]
    settings = {kind for kind in inner if inspect.isclass(kind) and dataclasses.is_dataclass(kind)} - {LabelSpace}
    yield from classes
    yield from sorted(settings, key=lambda kind: kind.__name__)
    yield from map(resolve_name, COMMANDS.values())


def numeric_settings() -> Iterator[Setting]:
    for owner in owners():
        for name, hint in parameters_of(owner).items():
            kinds = [kind for kind in leaves(hint) if kind in (int, float)]
            if kinds and not (name == "dim" and owner.__module__.startswith("heads")):  # given by the backbone
                yield Setting(owner, name, kinds[-1], is_sequence(hint))


SETTINGS = list(numeric_settings())


def test_the_settings_are_found():
    names = {str(setting) for setting in SETTINGS}
    expected = {"BiLSTM.hidden", "PLT.beam", "Sample.batch_size", "Focal.gamma", "PVAETraining.lr", "Stage.patience"}
    assert expected | {"TreeSettings.height", "RowAdam.betas", "WarmupDecay.warmup", "compare.samples"} <= names


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_values_out_of_range_are_refused_by_name(setting):
    for value in VALUES:
        value = setting.kind(value) if value == 0 else value
        given = {setting.name: (value, value) if setting.is_list else value}
        act = partial(setting.owner, **needed(setting.owner) | given)
        if not setting.is_legal(value):
            with pytest.raises((UserError, TypeError), match=rf"`[\w.]*{setting.name}=\W*{re.escape(str(value))}"):
                act()
        elif inspect.isclass(setting.owner):
            act()  # or it should not be among the legal values
