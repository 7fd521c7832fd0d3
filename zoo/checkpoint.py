"""A checkpoint file rebuilds the model it was written from."""

from __future__ import annotations

from argparse import ArgumentError
from pathlib import Path
from typing import IO, Any

import torch
import yaml
from jsonargparse import ArgumentParser
from lightning_fabric.utilities.types import _PATH
from pytorch_lightning.__version__ import version
from pytorch_lightning.plugins.io import TorchCheckpointIO

from datamodules.batch import LabelSpace
from datamodules.errors import UserError, first_line
from datamodules.files import written_whole
from datamodules.vocab import Vocabulary
from zoo.module import ZooModule

ORIGIN = ("pytorch-lightning_version", "epoch", "global_step")


def read_checkpoint(path: str | Path) -> dict[str, Any]:
    """The raw content of a checkpoint of this zoo; opens nothing but tensors and plain values."""
    file = Path(path).expanduser()
    if not file.is_file():
        raise UserError(f"no such checkpoint: {path}")
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # what unpickling raises depends on where the damage is
        raise UserError(f"{path} is not a checkpoint, or is damaged: {first_line(error)}") from error
    if not isinstance(content, dict) or "zoo" not in content:
        raise UserError(f"{path} was not written by zoo fit")
    return content


def rebuild(path: str | Path) -> ZooModule:
    """The model in evaluation mode, its vocabulary with it."""
    content = read_checkpoint(path)
    stored = content["zoo"]
    if not stored["config"] or not stored["tokenizer"]:
        raise UserError(f"{path} carries no configuration or vocabulary: train with `python -m zoo fit`")
    config = yaml.safe_load(stored["config"])["model"]
    config["backbone"] = with_settings(config["backbone"], stored.get("backbone") or {})
    module = build(config, LabelSpace(**stored["space"]))
    module.load_state_dict(content["state_dict"])
    module.config_text = stored["config"]
    module.origin = {key: content[key] for key in ORIGIN if key in content}
    module.vocabulary = Vocabulary.from_text(stored["tokenizer"], stored["max_length"])
    return module.eval()


def with_settings(part: Any, settings: dict[str, Any]) -> Any:
    """A class of a configuration with some of its settings replaced."""
    if not settings:
        return part
    part = {"class_path": part} if isinstance(part, str) else part
    return part | {"init_args": (part.get("init_args") or {}) | settings}


def build(config: dict[str, Any], space: LabelSpace) -> ZooModule:
    """A module from the `model` part of a configuration."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(ZooModule, "model", skip={"space"})
    try:
        parsed = parser.parse_object({"model": config})
    except ArgumentError as error:
        reason = " ".join(str(error).split())
        raise UserError(f"the checkpoint names parts that cannot be found here: {reason}") from error
    parts = parser.instantiate_classes(parsed, instantiate_groups=False).model
    return ZooModule(space, **vars(parts))


def save(module: ZooModule, path: str | Path) -> None:
    """Write what `rebuild` needs, and no state of training."""
    if not module.config_text:
        raise UserError("this model has no configuration to rebuild it from: load it from a checkpoint of zoo fit")
    target = check_target(path)
    here = dict(zip(ORIGIN, (version, module.current_epoch, module.global_step), strict=True))
    content: dict[str, Any] = here | module.origin | {"state_dict": module.state_dict()}
    module.on_save_checkpoint(content)
    try:
        WholeCheckpoints().save_checkpoint(content, target)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror or error}") from error


def check_target(path: str | Path) -> Path:
    """Where a checkpoint can be written: a file, or a free name, in a folder that there is."""
    target = Path(path).expanduser().resolve()
    if not target.parent.is_dir() or (target.exists() and not target.is_file()):
        raise UserError(f"cannot write {path}: not a file in an existing folder")
    return target


class WholeCheckpoints(TorchCheckpointIO):
    """Lightning's, but a kill, a power cut or a full disk leaves the older file as it was."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: _PATH, storage_options: Any | None = None) -> None:
        if storage_options is not None or "://" in str(path):
            return super().save_checkpoint(checkpoint, path, storage_options)
        target, watched = Path(path), None
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with written_whole(target) as aside, aside.open("wb") as file:
                watched = WatchedFile(file)
                torch.save(checkpoint, watched)  # type: ignore[arg-type]  # it needs no more than these methods
        except (OSError, RuntimeError) as error:
            cause = (watched and watched.error) or error
            if not isinstance(cause, OSError):
                raise
            raise OSError(cause.errno, cause.strerror, str(target)) from cause


class WatchedFile:
    """Passes on what is written, and remembers why that failed: torch raises an error without the reason."""

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
