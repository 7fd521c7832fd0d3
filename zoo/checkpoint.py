"""A checkpoint file rebuilds the model it was written from."""

from __future__ import annotations

from argparse import ArgumentError
from pathlib import Path
from typing import Any

import torch
import yaml
from jsonargparse import ArgumentParser

from datamodules.batch import LabelSpace
from datamodules.errors import UserError, first_line
from datamodules.vocab import Vocabulary
from zoo.module import ZooModule


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
    module = build(yaml.safe_load(stored["config"])["model"], LabelSpace(**stored["space"]))
    module.load_state_dict(content["state_dict"])
    module.config_text = stored["config"]
    module.vocabulary = Vocabulary.from_text(stored["tokenizer"], stored["max_length"])
    return module.eval()


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
