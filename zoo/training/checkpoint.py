"""Read and write checkpoints from which the model can be rebuilt."""

from __future__ import annotations

from argparse import ArgumentError
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
import yaml
from jsonargparse import ArgumentParser

from datamodules.batch import LabelSpace
from datamodules.prepare.vocabulary import Vocabulary
from zoo.core.errors import UserError, first_line
from zoo.core.files import atomic_write
from zoo.training.ranking_model import RankingModel

if TYPE_CHECKING:
    from datamodules.base import TextDataModule

ORIGIN = ("pytorch-lightning_version", "epoch", "global_step")  # kept when a checkpoint is written again


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read the content of a checkpoint; unpickles only tensors and plain values."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"no such checkpoint: {path}")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # the type depends on which part of the file is damaged
        raise UserError(f"{path} is not a checkpoint, or is damaged: {first_line(error)}") from error
    if not isinstance(content, dict) or "zoo" not in content:
        raise UserError(f"{path} was not written by zoo fit")
    return content


def rebuild(path: str | Path) -> RankingModel:
    """Load a model, in evaluation mode and with its vocabulary."""
    content = read_checkpoint(path)
    stored = content["zoo"]
    if not stored["config"] or not stored["tokenizer"]:
        raise UserError(f"{path} has no configuration or vocabulary: train with `zoo fit`")
    config = yaml.safe_load(stored["config"])["model"]
    config["backbone"] = with_settings(config["backbone"], stored.get("backbone") or {})
    module = build(config, LabelSpace(**stored["space"]))
    module.load_weights(content["state_dict"])
    module.config_text = stored["config"]
    module.origin = {key: content[key] for key in ORIGIN if key in content}
    module.vocabulary = Vocabulary.from_text(stored["tokenizer"], stored["max_length"])
    return module.eval()


def with_settings(spec: Any, settings: dict[str, Any]) -> Any:
    """Replace some `init_args` of a class in a configuration."""
    if not settings:
        return spec
    spec = {"class_path": spec} if isinstance(spec, str) else spec
    return spec | {"init_args": (spec.get("init_args") or {}) | settings}


def build(config: dict[str, Any], space: LabelSpace) -> RankingModel:
    """Make a model from the `model` section of a configuration."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(RankingModel, "model", skip={"space"})
    known = {name: config[name] for name in ("backbone", "head", "depth") if name in config}
    try:
        parsed = parser.parse_object({"model": known})
    except ArgumentError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the checkpoint needs classes or settings that are not available: {reason}") from error
    parts = parser.instantiate_classes(parsed, instantiate_groups=False).model
    return RankingModel(space, **vars(parts))


def build_data(config: dict[str, Any]) -> TextDataModule:
    """Make a datamodule from the `data` section of a configuration."""
    from datamodules.base import TextDataModule  # imports Lightning

    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(TextDataModule, "data")
    data = parser.instantiate_classes(parser.parse_object({"data": config})).data
    assert isinstance(data, TextDataModule)
    return data


def save(module: RankingModel, path: str | Path) -> None:
    """Write what `rebuild` needs; without optimizer states, so training cannot resume from it."""
    if not module.config_text:
        raise UserError("this model has no configuration to store: load it from a checkpoint of `zoo fit`")
    target = check_target(path)
    content = module.origin | {"state_dict": module.weights(), "zoo": module.stored_parts()}
    try:
        write_checkpoint(content, target)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def check_target(path: str | Path) -> Path:
    """Resolve the path of a checkpoint to write; its folder must exist."""
    target = Path(path).expanduser().resolve()
    if not target.parent.is_dir() or (target.exists() and not target.is_file()):
        raise UserError(f"cannot write {path}: not a file in an existing folder")
    return target


def write_checkpoint(content: dict[str, Any], target: Path) -> None:
    """Write a checkpoint atomically: the old file stays until the new one is complete."""
    watched = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(target) as temporary, temporary.open("wb") as file:
            watched = WatchedFile(file)
            torch.save(content, watched)  # type: ignore[arg-type]  # only calls write and flush
    except (OSError, RuntimeError) as error:
        cause = (watched and watched.error) or error
        if not isinstance(cause, OSError):
            raise
        raise OSError(cause.errno, cause.strerror, str(target)) from cause


class WatchedFile:
    """Remembers why a write failed: the error that torch raises instead has no reason."""

    def __init__(self, file: IO[bytes]) -> None:
        self.file = file
        self.error: OSError | None = None

    def write(self, data: bytes) -> int:
        try:
            return self.file.write(data)
        except OSError as error:
            self.error = error
            raise

    def flush(self) -> None:
        self.file.flush()
