"""What a checkpoint holds in addition to its weights: the configuration, the label space and the vocabulary."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from datamodules.batch import LabelSpace
from datamodules.prepare.vocabulary import Vocabulary
from zoo.core.errors import MANY, UserError, first_line
from zoo.core.settings import parse_yaml
from zoo.training.calibration import Calibration

FORMAT = 4  # of the entry `zoo` of a checkpoint
Migration = Callable[[dict[str, Any]], dict[str, Any]]
MIGRATIONS: dict[int, Migration] = {
    1: lambda stored: stored,
    2: lambda stored: stored | {"windows": 1},
    3: lambda stored: stored | {"calibration": None},
}  # from each older format to the next one
MOST_TEXT = 2**20  # characters of a configuration
LARGEST = 2**31  # of the numbers in a label space


@dataclass
class Stored:
    """The entry `zoo` of a checkpoint, checked.

    Attributes:
        config_text: configuration of the run as YAML.
        config: the same, parsed.
        backbone: settings that make the backbone independent of other files.
        space: label space.
        vocabulary: vocabulary.
        calibration: calibration; None without one.
    """

    config_text: str
    config: dict[str, Any]
    backbone: dict[str, Any]
    space: LabelSpace
    vocabulary: Vocabulary
    calibration: Calibration | None

    @classmethod
    def of(cls, stored: dict[str, Any]) -> Stored:
        """Check the entry `zoo` of a checkpoint; a `UserError` says what is wrong with it."""
        if "members" not in stored and not (stored.get("config") and stored.get("tokenizer")):
            raise UserError("it has no configuration or vocabulary: train with `zoo fit`")
        backbone = stored.get("backbone") or {}
        if not isinstance(backbone, dict):
            raise UserError("its settings of the backbone are damaged")
        config, space = read_config(stored), read_space(stored.get("space"))
        calibration = Calibration.of(stored.get("calibration"), space)
        return cls(stored["config"], config, backbone, space, read_vocabulary(stored, space), calibration)

    @property
    def model(self) -> dict[str, Any]:
        """Section `model` of the configuration, with a backbone that needs no other files."""
        model = dict(self.config["model"])
        return model | {"backbone": with_settings(model.get("backbone"), self.backbone)}


def with_settings(spec: Any, settings: dict[str, Any]) -> Any:
    """Replace some `init_args` of a class in a configuration."""
    if not settings:
        return spec
    spec = spec if isinstance(spec, dict) else {"class_path": spec}
    return spec | {"init_args": (spec.get("init_args") or {}) | settings}


def migrated(stored: Any) -> dict[str, Any]:
    """Bring the entry `zoo` of a checkpoint to the current format; files without a version have format 1."""
    if not isinstance(stored, dict):
        raise UserError("its entry `zoo` is damaged")
    version = stored.get("format", 1)
    if not isinstance(version, int) or version < 1:
        raise UserError(f"its format {str(version)[:20]!r} is unknown")
    if version > FORMAT:
        raise UserError(f"it has format {version}, from a newer version of the zoo: upgrade with `pip install -U`")
    for old in range(version, FORMAT):
        stored = MIGRATIONS[old](stored)
    return {**stored, "format": FORMAT}


def read_config(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Parse the configuration, which must have a model."""
    if "members" in stored:
        raise UserError("it is an ensemble, which only `predict` can use: give the checkpoint of a model")
    text = stored.get("config")
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise UserError("its configuration is damaged: not a text of a usual length")
    try:
        config = parse_yaml(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"its configuration is not valid YAML: {first_line(error)}") from error
    if not isinstance(config, dict) or not isinstance(config.get("model"), dict):
        raise UserError("its configuration has no section `model`")
    return config


def read_vocabulary(stored: Mapping[str, Any], space: LabelSpace) -> Vocabulary:
    text, length, windows = (stored.get(name) for name in ("tokenizer", "max_length", "windows"))
    if not isinstance(text, str) or not isinstance(length, int) or not 0 < length < LARGEST:
        raise UserError("its vocabulary is damaged: expected a text and a maximum length")
    if not isinstance(windows, int) or not 0 < windows <= MANY:
        raise UserError("its number of windows is damaged")
    try:
        vocabulary = Vocabulary.from_text(text, length, windows)
    except BaseException as error:
        # Panics of the native library are no `Exception`; all others, such as an interrupt, are passed on.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"its vocabulary is damaged: {first_line(error)}") from error
    if vocabulary.size != space.vocab_size or vocabulary.pad_id != space.pad_id:
        raise UserError(
            f"its vocabulary has {vocabulary.size:,} tokens and padding id {vocabulary.pad_id}, its label space "
            f"{space.vocab_size:,} and {space.pad_id}"
        )
    return vocabulary


def read_space(values: Any) -> LabelSpace:
    """Make the label space; refuse values of another type or size."""
    hints = get_type_hints(LabelSpace)
    needed = {field.name for field in fields(LabelSpace)[:4]}
    if not isinstance(values, dict) or not needed <= values.keys() <= hints.keys():
        raise UserError("its label space is damaged: it has not the fields of `LabelSpace`")
    for name, value in values.items():
        if not is_a(value, hints[name]):
            raise UserError(f"its label space is damaged: `{name}` is not {getattr(hints[name], '__name__', '')}")
    space = LabelSpace(**values)
    numbers = [*space.counts, *space.reference_counts, space.num_documents, space.reference_documents, space.pad_id]
    wrong = {
        "names": not space.names or len({*space.names, *space.unseen}) != space.num_all,
        "counts": len(space.counts) != space.num_labels,
        "reference_counts": len(space.reference_counts) != space.num_all,
        "texts": len(space.texts) not in (0, space.num_labels),
        "unseen_texts": len(space.unseen_texts) not in (0, len(space.unseen)),
        "parents": len(space.parents) % 2 != 0 or not all(0 <= label < space.num_labels for label in space.parents),
        "added": not 0 <= space.added <= space.num_labels,
        "vocab_size": not 0 < space.vocab_size < LARGEST,
        "pad_id": not 0 <= space.pad_id < space.vocab_size,
        "numbers": not all(0 <= number < LARGEST for number in numbers),
        "propensities": not (math.isfinite(space.propensity_a) and -1 < space.propensity_b < math.inf),
    }
    if found := [name for name, is_wrong in wrong.items() if is_wrong]:
        raise UserError(f"its label space is damaged: {', '.join(found)} out of range or of another length")
    return space


def is_a(value: Any, hint: Any) -> bool:
    """Whether a value has exactly this type, which is `list[...]` or plain; an int is a float too."""
    if get_origin(hint) is list:
        return type(value) is list and all(type(item) is get_args(hint)[0] for item in value)
    return type(value) is hint or (hint is float and type(value) is int)


def check_weights(module: nn.Module, weights: Any) -> None:
    """Refuse a state dict that does not fit the module, or with NaN or infinite weights."""
    own = module.state_dict()
    if not isinstance(weights, dict):
        raise UserError("the checkpoint has no weights")
    for names, what in ((own.keys() - weights.keys(), "lacks"), (weights.keys() - own.keys(), "has unknown")):
        if names:
            first = min(map(str, names))[:80]
            raise UserError(f"the checkpoint {what} weights, such as {first} ({len(names):,} in all)")
    for name, value in own.items():
        if isinstance(value, Tensor):
            check_tensor(name, weights[name], value)


def check_tensor(name: str, given: Any, own: Tensor) -> None:
    if type(given) is not Tensor or given.layout != torch.strided or given.is_quantized or given.is_meta:
        raise UserError(f"{name} in the checkpoint is not a dense tensor")
    if given.shape != own.shape:
        raise UserError(f"{name} in the checkpoint has shape {tuple(given.shape)}, the model {tuple(own.shape)}")
    if given.dtype != own.dtype and not (given.is_floating_point() and own.is_floating_point()):
        raise UserError(f"{name} in the checkpoint has type {given.dtype}, the model {own.dtype}")
    # A sum is 20 times faster than `isfinite`, and infinite also where only the sum overflows.
    if given.is_floating_point() and not given.sum().isfinite() and not given.isfinite().all():
        raise UserError(f"{name} in the checkpoint has NaN or infinite weights: use a checkpoint from before")


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """End errors from the content of a checkpoint in one line that names the file."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except Exception as error:  # content that no version of the zoo has written may fail anywhere
        raise UserError(f"{path} is damaged or was not written by `zoo fit`: {first_line(error)}") from error
