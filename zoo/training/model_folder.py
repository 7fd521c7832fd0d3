"""A model as a folder of files that other programs can read: what is shared on a hub."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from zoo.core.errors import UserError, first_line

WEIGHTS, CONTENT = "model.safetensors", "zoo.json"
CONFIG, TOKENIZER, LABELS, THRESHOLDS = "config.yaml", "tokenizer.json", "labels.json", "thresholds.json"
METRICS, CARD = "metrics.json", "README.md"
PARTS = {CONFIG: "config", TOKENIZER: "tokenizer", LABELS: "space", THRESHOLDS: "calibration"}  # of the entry `zoo`
NEEDED = (WEIGHTS, CONTENT)
FILES = (*NEEDED, *PARTS, METRICS, CARD)
LARGEST = {WEIGHTS: 2**36, CARD: 2**20}  # bytes
LARGEST_TEXT = 2**29  # of other files
FORMAT = 1  # of the folder
KEPT = ("state_dict", "zoo", "pytorch-lightning_version", "epoch", "global_step")  # entries of a checkpoint
TENSOR = "tensor"  # key of an object in `zoo.json` that stands for a tensor
MOST = 10_000_000  # values in `zoo.json`


def largest(name: str) -> int:
    """Largest size of a file, in bytes."""
    return LARGEST.get(name, LARGEST_TEXT)


def write_model(content: dict[str, Any], folder: Path) -> None:
    """Write the content of a checkpoint; states of the optimizer and the trainer are left out."""
    from safetensors.torch import save_file

    tensors: dict[str, Tensor] = {}
    rest = {key: content[key] for key in KEPT if key in content}
    plain = without_tensors(rest, (), tensors)
    stored = plain["zoo"]
    for name, key in PARTS.items():
        if isinstance(value := stored.get(key), str):
            (folder / name).write_text(value, "utf8")
        elif value is not None:
            (folder / name).write_text(json.dumps(value, ensure_ascii=False) + "\n", "utf8")
    plain["zoo"] = {key: value for key, value in stored.items() if key not in PARTS.values() or value is None}
    (folder / CONTENT).write_text(json.dumps({"folder": FORMAT} | plain, ensure_ascii=False, indent=1) + "\n", "utf8")
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})


def without_tensors(value: Any, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """The value with its tensors moved to `tensors`; those of a state dict keep their names."""
    if isinstance(value, Tensor):
        name = "/".join(path[1:] if path[0] == "state_dict" and len(path) == 2 else path)
        tensors[name] = value.detach().cpu().clone().contiguous()  # no two share their memory
        return {TENSOR: name}
    if isinstance(value, dict):
        return {str(key): without_tensors(item, (*path, str(key)), tensors) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [without_tensors(item, (*path, str(i)), tensors) for i, item in enumerate(value)]
    if isinstance(value, str | int | float | None):
        return value
    raise UserError(f"{'/'.join(path)} of the checkpoint is of type {type(value).__name__}, which cannot be shared")


def read_model(folder: Path) -> dict[str, Any]:
    """Read what `write_model` wrote: plain values and tensors, never code; the caller checks what they say."""
    from safetensors.torch import load_file

    for name in FILES:
        file = folder / name
        if name in NEEDED and not file.is_file():
            raise UserError(f"{folder} is not a shared model: it has no {name}")
        if file.exists() and file.stat().st_size > largest(name):
            raise UserError(f"{file} is larger than {largest(name):,} bytes")
    try:
        tensors = load_file(folder / WEIGHTS)
        content = json.loads((folder / CONTENT).read_text("utf8"))
        if content.pop("folder") != FORMAT:
            raise ValueError("another format, of a newer version of the zoo")
        for name, key in PARTS.items():
            if (folder / name).is_file():
                text = (folder / name).read_text("utf8")
                content["zoo"][key] = text if name in (CONFIG, TOKENIZER) else json.loads(text)
        found = with_tensors({key: content[key] for key in KEPT if key in content}, tensors, iter(range(MOST)))
    except Exception as error:  # damage may show anywhere
        raise UserError(f"{folder} is not a shared model, or is damaged: {first_line(error)}") from error
    assert isinstance(found, dict)
    return found


def with_tensors(value: Any, tensors: dict[str, Tensor], budget: Iterator[int]) -> Any:
    if next(budget, None) is None:
        raise ValueError(f"more than {MOST:,} values")
    if isinstance(value, dict):
        if value.keys() == {TENSOR}:
            return torch.as_tensor(tensors[value[TENSOR]])
        return {key: with_tensors(item, tensors, budget) for key, item in value.items()}
    if isinstance(value, list):
        # Long lists of names and numbers, as labels have, hold no tensors.
        return [with_tensors(item, tensors, budget) for item in value] if any(map(is_nested, value)) else value
    return value


def is_nested(value: Any) -> bool:
    return isinstance(value, dict | list)
