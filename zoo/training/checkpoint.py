"""Read and write checkpoints from which the model can be rebuilt."""

from __future__ import annotations

import zipfile
from argparse import ArgumentError
from collections.abc import Sequence
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
from jsonargparse import ArgumentParser

from datamodules.batch import LabelSpace
from datamodules.prepare.hub import from_settings_alone
from zoo.core.errors import UserError, first_line
from zoo.core.files import atomic_write
from zoo.training.hub_models import located
from zoo.training.model_folder import WEIGHTS, read_model
from zoo.training.ranking_model import RankingModel
from zoo.training.stored import Stored, migrated, reading
from zoo.training.trust import DATA, MODEL, check_trust, import_paths, imports_limited_to, refusal

if TYPE_CHECKING:
    from datamodules.base import TextDataModule

ORIGIN = ("pytorch-lightning_version", "epoch", "global_step")  # kept when a checkpoint is written again
ENCRYPTED = 1  # flag of a zip entry


def read_checkpoint(path: str | Path, mmap: bool = True) -> dict[str, Any]:
    """Read the content of a checkpoint, which may be on the hub; unpickles only tensors and plain values."""
    file = located(path)
    if not file.is_file():
        raise UserError(f"no such checkpoint: {path}")
    content = read_model(file.parent) if file.name == WEIGHTS else read_archive(file, path, mmap)
    if not isinstance(content, dict) or "zoo" not in content:
        raise UserError(f"{path} was not written by zoo fit")
    with reading(path):
        content["zoo"] = migrated(content["zoo"])
    return content


def read_archive(file: Path, path: str | Path, mmap: bool) -> Any:
    """Read a file of `torch.save`; `path` is for messages."""
    try:
        check_archive(file)
        with torch.sparse.check_sparse_tensor_invariants():  # type: ignore[no-untyped-call]
            return torch.load(file, map_location="cpu", weights_only=True, mmap=mmap)
    except Exception as error:  # the type depends on which part of the file is damaged
        raise UserError(f"{path} is not a checkpoint, or is damaged: {first_line(error)}") from error


def is_ensemble(content: dict[str, Any]) -> bool:
    """Whether a checkpoint holds several models, written by `zoo ensemble`."""
    return "members" in content["zoo"]


def check_archive(file: Path) -> None:
    """Verify the checksums of a zip file, which torch ignores; refuse entries that are compressed or encrypted."""
    with zipfile.ZipFile(file) as archive:
        entries = archive.infolist()
        if any(entry.compress_type != zipfile.ZIP_STORED or entry.flag_bits & ENCRYPTED for entry in entries):
            raise ValueError("it has compressed or encrypted entries, which torch does not write")
        if len({entry.filename for entry in entries}) < len(entries):
            raise ValueError("it has two entries of one name")
        if (wrong := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {wrong} is wrong")


def rebuild(path: str | Path, trust: Sequence[str] = ()) -> RankingModel:
    """Load a model, in evaluation mode and with its vocabulary; `trust` are modules with classes outside the zoo."""
    return rebuilt(read_checkpoint(path), path, trust)


def rebuilt(content: dict[str, Any], path: str | Path, trust: Sequence[str] = ()) -> RankingModel:
    """Make the model from the content of a checkpoint; `path` is for messages."""
    with reading(path):
        stored = Stored.of(content["zoo"])
        module = build(stored.model, stored.space, trust)
        module.load_weights(content["state_dict"])
    return finish(module, stored, content)


def finish(module: RankingModel, stored: Stored, content: dict[str, Any]) -> RankingModel:
    """Set what a model needs to predict texts and to be saved again; evaluation mode."""
    module.config_text = stored.config_text
    module.origin = {key: content[key] for key in ORIGIN if key in content}
    module.vocabulary, module.calibration = stored.vocabulary, stored.calibration
    return module.eval()


def build(config: dict[str, Any], space: LabelSpace, trust: Sequence[str] = ()) -> RankingModel:
    """Make a model from the `model` section of a stored configuration, of classes that it may name."""
    known = {name: config[name] for name in ("backbone", "head", "depth") if name in config}
    allowed = import_paths(known, MODEL, check_trust(trust))
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(RankingModel, "model", skip={"space"})
    with imports_limited_to(allowed):
        try:
            parsed = parser.parse_object({"model": deepcopy(known)})  # which parsing changes
        except (ArgumentError, ValueError) as error:
            raise refusal(error) from error
        parts = parser.instantiate_classes(parsed, instantiate_groups=False).model
    with nullcontext() if trust else from_settings_alone():
        return RankingModel(space, **vars(parts))


def build_data(config: dict[str, Any], trust: Sequence[str] = ()) -> TextDataModule:
    """Make a datamodule from the `data` section of a stored configuration; it writes to the default cache only."""
    from datamodules.base import TextDataModule  # imports Lightning

    config = without_places(config)
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(TextDataModule, "data")
    with imports_limited_to(import_paths(config, DATA, check_trust(trust))):
        try:
            data = parser.instantiate_classes(parser.parse_object({"data": deepcopy(config)})).data
        except (ArgumentError, ValueError) as error:
            raise refusal(error) from error
    assert isinstance(data, TextDataModule)
    return data


def without_places(data: Any) -> Any:
    """Remove the folder that a `data` section writes to: a checkpoint may only say what is read."""
    if not isinstance(data, dict) or not isinstance(data.get("init_args"), dict):
        return data
    return data | {"init_args": {key: value for key, value in data["init_args"].items() if key != "cache_dir"}}


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
    if target.name == WEIGHTS or Path(path).name == WEIGHTS:  # of a shared model, perhaps in the cache of the hub
        raise UserError(f"cannot write {path}: {WEIGHTS} is the name of a shared model's weights; choose another name")
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
