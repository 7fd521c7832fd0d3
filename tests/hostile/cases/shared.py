"""Models as folders, as `zoo push` writes them and a hub gives them: damaged, hostile, or with links out of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.hostile.case import CANARY, EITHER, ERROR, WORKS, Box, Case, Result, silent_unless
from tests.hostile.cases.checkpoints import DOCUMENTS, EVIL, load, setting, tags_are_sound

PREDICT = ["predict", "--ckpt=shared/model.safetensors", "--input=in.txt", "--out=tags.jsonl"]
Change = Callable[[Path], object]


def folder_with(change: Change, model: str) -> Callable[[Box], None]:
    """Write a model as a folder, and change its files."""

    def setup(box: Box) -> None:
        from zoo.training.model_folder import write_model

        folder = box.folder / "shared"
        folder.mkdir()
        write_model(load(box.model(model)), folder)
        change(folder)

    return setup


def text(name: str, content: str | bytes) -> Change:
    return lambda folder: (folder / name).write_bytes(content if isinstance(content, bytes) else content.encode())


def values(name: str, edit: Callable[[Any], Any]) -> Change:
    """Change the values in a JSON file."""

    def change(folder: Path) -> None:
        found = json.loads((folder / name).read_text("utf8"))
        (folder / name).write_text(json.dumps(edit(found)), "utf8")

    return change


def in_config(path: str, value: Any) -> Change:
    """Change the configuration."""

    def change(folder: Path) -> None:
        content = {"zoo": {"config": (folder / "config.yaml").read_text("utf8")}}
        setting(path, value)(content)
        (folder / "config.yaml").write_text(content["zoo"]["config"], "utf8")

    return change


def tensors(edit: Callable[[dict[str, torch.Tensor]], object]) -> Change:
    def change(folder: Path) -> None:
        from safetensors.torch import load_file, save_file

        found = load_file(folder / "model.safetensors")
        edit(found)
        save_file(found, folder / "model.safetensors")

    return change


def header(content: dict[str, Any], size: int | None = None) -> Change:
    """Weights with a header of our own."""

    def change(folder: Path) -> None:
        data = json.dumps(content).encode()
        length = (len(data) if size is None else size).to_bytes(8, "little")
        (folder / "model.safetensors").write_bytes(length + data + bytes(64))

    return change


def linked(name: str, target: str) -> Change:
    def change(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return change


def nan(found: dict[str, torch.Tensor]) -> None:
    name = next(name for name, value in found.items() if value.is_floating_point() and value.ndim == 2)
    found[name][0, 0] = float("nan")


def merged(more: Any) -> Callable[[Any], Any]:
    return lambda found: found | more


ONE = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
CHANGES: dict[str, tuple[str, Change, tuple[str, ...]]] = {
    "works": ("linear", lambda folder: None, WORKS),
    "svm-works": ("svm", lambda folder: None, WORKS),
    "blend-works": ("pair", lambda folder: None, WORKS),
    "popen-as-head": ("linear", in_config("model/head", EVIL), ERROR),
    "popen-in-settings": ("linear", in_config("model/backbone/init_args/hidden", EVIL), ERROR),
    "python-tag": ("linear", text("config.yaml", f"model: !!python/object/apply:os.system ['touch {CANARY}']"), ERROR),
    "config-missing": ("linear", lambda folder: (folder / "config.yaml").unlink(), ERROR),
    "config-not-utf8": ("linear", text("config.yaml", b"\xff\xfe"), ERROR),
    "weights-missing": ("linear", lambda folder: (folder / "model.safetensors").unlink(), ERROR),
    "weights-empty": ("linear", text("model.safetensors", b""), ERROR),
    "weights-are-text": ("linear", text("model.safetensors", b"hello world " * 10), ERROR),
    "weights-nan": ("linear", tensors(nan), ERROR),
    "weights-renamed": ("linear", tensors(lambda found: found.update(more=torch.zeros(3))), EITHER),
    "weights-removed": ("linear", tensors(lambda found: found.pop(next(iter(found)))), ERROR),
    "header-huge": ("linear", header({}, 2**60), ERROR),
    "header-negative": ("linear", header({}, 2**63), ERROR),
    "header-of-nothing": ("linear", header({}), ERROR),
    "header-offsets-outside": ("linear", header({"a": ONE | {"data_offsets": [0, 10**9]}}), ERROR),
    "header-offsets-overlap": ("linear", header({"a": ONE, "b": ONE}), ERROR),
    "header-shape-huge": ("linear", header({"a": ONE | {"shape": [2**40, 2**40]}}), ERROR),
    "header-shape-negative": ("linear", header({"a": ONE | {"shape": [-1, 4]}}), ERROR),
    "content-broken": ("linear", text("zoo.json", "{"), ERROR),
    "content-a-list": ("linear", text("zoo.json", "[1]"), ERROR),
    "content-deep": ("linear", text("zoo.json", '{"folder": 1, "zoo": ' + "[" * 100_000), ERROR),
    "content-of-the-future": ("linear", values("zoo.json", merged({"folder": 99})), ERROR),
    "content-without-zoo": ("linear", values("zoo.json", lambda found: {"folder": 1}), ERROR),
    "tensor-unknown": ("linear", values("zoo.json", merged({"state_dict": {"a": {"tensor": "../../x"}}})), ERROR),
    "tensor-is-a-list": ("linear", values("zoo.json", merged({"state_dict": {"a": {"tensor": [1]}}})), ERROR),
    "tensor-as-config": ("linear", values("zoo.json", lambda found: found | {"zoo": {"tensor": "head.bias"}}), ERROR),
    "labels-a-tensor": ("linear", text("labels.json", '{"tensor": "x"}'), ERROR),
    "labels-broken": ("linear", text("labels.json", "["), ERROR),
    "labels-nan": ("linear", values("labels.json", merged({"propensity_a": float("nan")})), ERROR),
    "labels-too-few": ("linear", values("labels.json", lambda found: found | {"names": found["names"][:3]}), ERROR),
    "tokenizer-broken": ("linear", text("tokenizer.json", "{}"), ERROR),
    "thresholds-odd": ("linear", text("thresholds.json", '{"method": "magic"}'), ERROR),
    "link-to-secret": ("linear", linked("labels.json", "/etc/passwd"), ERROR),
    "link-to-device": ("linear", linked("config.yaml", "/dev/null"), ERROR),
    "link-to-itself": ("linear", linked("zoo.json", "zoo.json"), ERROR),
    "pipe-as-labels": ("linear", lambda folder: ((folder / "labels.json").unlink(), os.mkfifo(folder / "labels.json")),
                       ERROR),
    "members-without-weights": ("pair", tensors(lambda found: [found.pop(name) for name in list(found)[:3]]), ERROR),
}  # fmt: skip
PUSHES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "name-climbs": (["linear.ckpt", "../../x"], ERROR),
    "name-without-owner": (["linear.ckpt", "model"], ERROR),
    "name-with-revision": (["linear.ckpt", "me/model@main"], ERROR),
    "licence-markup": (["linear.ckpt", "me/model", "--licence=<b>\n---"], ERROR),
    "no-run": (["nowhere", "me/model"], ERROR),
    "a-folder-without-runs": ([".", "me/model"], ERROR),
    "offline": (["linear.ckpt", "me/model"], ERROR),
    "hostile-checkpoint": (["bad.ckpt", "me/model"], ERROR),
}
NAMES = (
    "me/model",
    "me/model@../../x",
    "me/..",
    "../me/model",
    "me/model@",
    "a" * 90 + "/b",
    "me/model\n",
    "me//model",
)


def no_secret(box: Box, result: Result) -> None:
    tags_are_sound(box, result)
    silent_unless("root:" not in result.out + result.err, "a file of the machine is shown")


def cases(seed: int) -> list[Case]:
    found = []
    for id, (model, change, expect) in CHANGES.items():
        options = {"timeout": 20} if id.startswith("pipe") else {}
        setup = folder_with(change, model)
        found.append(Case(id, PREDICT, expect, DOCUMENTS, setup, no_secret, options, needs=(model,)))
    for id, (argv, expect) in PUSHES.items():
        found.append(Case(f"push-{id}", ["push", *argv], expect, setup=hostile, needs=("linear",)))
    for number, name in enumerate(NAMES):
        argv = ["predict", f"--ckpt={name}", "--input=in.txt"]
        found.append(Case(f"name-{number}", argv, ERROR, DOCUMENTS))
    return found


def hostile(box: Box) -> None:
    content = load(box.model("linear"))
    setting("model/head", EVIL)(content)
    torch.save(content, box.folder / "bad.ckpt")
