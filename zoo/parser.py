"""Experiments put together from their parts, before LightningCLI reads them."""

from __future__ import annotations

import difflib
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from pytorch_lightning.cli import LightningArgumentParser

from callbacks import Stage
from datamodules.errors import UserError
from zoo.checkpoint import read_checkpoint
from zoo.verbs import OneLine

SECTIONS = {"trainer", "model", "data", "stages", "best", "last", "wandb"}  # of settings
STAGE_SETTINGS = tuple(field.name for field in fields(Stage))
CLASS_KEYS = {"class_path", "init_args", "dict_kwargs"}
SETTINGS = {"seed_everything", "name", "runs", "final_test", "ckpt", "ckpt_path", "from_stage"}


class OneLineParser(OneLine, LightningArgumentParser):
    """Lightning's, with mistakes in one line."""


def resolve_files(argv: list[str], folder: Path) -> list[str]:
    """Arguments with every `--config` resolved, `--stages.*` put into them, and `--ckpt F` giving what F carries."""
    rest: list[str] = []
    configs: list[tuple[str, Path]] = []
    overrides: dict[str, Any] = {}
    options, verb = iter(argv), argv[0] if argv else ""
    for argument in options:
        option, given, value = argument.partition("=")
        if option not in ("--config", "-c", "--ckpt") and not option.startswith("--stages."):
            rest.append(argument)
            continue
        value = value if given else next(options, "")
        if not value or (not given and value.startswith("--")):
            raise UserError(f"{option} needs a value")
        if option.startswith("--stages."):
            overrides[option.removeprefix("--")] = parse_yaml(option, value)
            continue
        place = folder / str(len(configs) + len(rest))  # files of one name may come from two folders
        place.mkdir()
        if option == "--ckpt":
            rest += ["--ckpt" if verb == "fit" else "--ckpt_path", value]
            if verb != "fit" or not any(argument.startswith(("--config", "-c")) for argument in argv):
                configs.append((str(config_of(value, verb, place)), place))
        else:
            configs.append((value, place))
    staged = [i for i, (config, _) in enumerate(configs) if "stages" in read_yaml(Path(config))] or [0]
    files = [resolve_config(*config, overrides if i == staged[-1] else {}) for i, config in enumerate(configs)]
    if overrides and not files:
        raise UserError("--stages.NAME.SETTING overrides a stage of an experiment: give one with --config")
    return [*rest[:1], *(part for file in files for part in ("--config", str(file))), *rest[1:]]


def config_of(checkpoint: str, verb: str, folder: Path) -> Path:
    """What a checkpoint was trained with, as far as the command needs it."""
    config = yaml.safe_load(read_checkpoint(checkpoint)["zoo"]["config"] or "{}")
    kept = {"seed_everything", "name", "model", "data"}
    if verb == "fit":
        kept |= {"trainer", "stages", "best", "last"}
    file = folder / f"{Path(checkpoint).stem}.yaml"
    content = {key: value for key, value in config.items() if key in kept and value is not None}
    file.write_text(yaml.safe_dump(content, sort_keys=False), "utf8")
    return file


def resolve_config(config: str, folder: Path, overrides: dict[str, Any]) -> Path:
    """An experiment with its parts put in, as a file of the same name in `folder`.

    A section may name a file, relative to its own, and dotted keys then override single settings of it:
    `trainer: parts/trainer.yaml` and `trainer.max_epochs: 12`. A stage goes by its name: `stages.finetune.epochs: 2`;
    `overrides` are such keys from elsewhere.
    """
    path = Path(config)
    content = read_yaml(path)
    for key in content:
        section = str(key).split(".")[0]
        if section not in SECTIONS | SETTINGS:
            close = difflib.get_close_matches(section, sorted(SECTIONS | SETTINGS), n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(SECTIONS | SETTINGS))}"
            raise UserError(f"{config}: unknown key {key!r}; {meant}")
    resolved: dict[str, Any] = {}
    for key, value in sorted(content.items(), key=lambda item: str(item[0]).count(".")):  # sections, then overrides
        if key in SECTIONS and isinstance(value, str) and value.endswith((".yaml", ".yml")):
            value = read_yaml(path.parent / value)
        if key == "stages" and value is not None:
            value = list_of_stages(config, value)
        elif key in SECTIONS and key != "stages" and not isinstance(value, dict | str):
            raise UserError(f"{config}: `{key}` is {value!r}: expected settings, or the file that has them")
        if str(key).startswith("stages."):
            override_stage(resolved.get("stages"), str(key), value)
            continue
        place = resolved
        keys = str(key).split(".")
        for parent, following in pairwise(keys):
            place = inside(place, parent, following, f"{config}: `{key}`")
        place[keys[-1]] = value
    for option, value in overrides.items():
        override_stage(resolved.get("stages"), option, value)
    target = folder / path.name
    target.write_text(yaml.safe_dump(resolved, sort_keys=False), "utf8")
    return target


def inside(place: dict[str, Any], parent: str, key: str, where: str) -> dict[str, Any]:
    """Where a setting of a part belongs: `data.max_length` means `data.init_args.max_length`, as in an option."""
    value = place.get(parent)
    value = {"class_path": value} if isinstance(value, str) else {} if value is None else value
    if not isinstance(value, dict):
        raise UserError(f"{where} is a setting of `{parent}`, which is {value!r} and has none")
    place[parent] = value
    return inside(value, "init_args", "", where) if "class_path" in value and key not in {*CLASS_KEYS, ""} else value


def list_of_stages(config: str, value: Any) -> list[dict[str, Any]]:
    stages = value.get("stages") if isinstance(value, dict) else value  # a part holds them under the same key
    if not isinstance(stages, list) or not all(isinstance(stage, dict) and "name" in stage for stage in stages):
        raise UserError(f"{config}: `stages` must be a list of stages, each with a name")
    return stages


def override_stage(stages: list[dict[str, Any]] | None, key: str, value: Any) -> None:
    """Set one setting of the stage that a key such as `stages.finetune.epochs` names."""
    names = [stage["name"] for stage in stages or []]
    _, name, *path = key.split(".")
    if name not in names or not path:
        known = f"the stages are {', '.join(names)}" if names else "the experiment has no stages"
        raise UserError(f"{key} names no setting of a stage: {known}, and a key is stages.NAME.SETTING")
    if path[0] not in STAGE_SETTINGS:
        raise UserError(f"{key}: a stage has no setting {path[0]!r}; it has {', '.join(STAGE_SETTINGS)}")
    place = (stages or [])[names.index(name)]
    for parent in path[:-1]:
        inside = place.get(parent)
        if isinstance(inside, str):
            inside = place[parent] = {"class_path": inside}
        if not isinstance(inside, dict):
            raise UserError(f"{key}: stage {name!r} has no {parent!r} of its own; give it one first")
        place = inside.setdefault("init_args", {}) if "class_path" in inside else inside
    place[path[-1]] = value


def read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"no such configuration: {path}")
    try:
        content = parse_yaml(str(path), path.read_text("utf8"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected sections such as `model:` and `data:`")
    return content


def parse_yaml(where: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{where} is not valid YAML: {' '.join(str(error).split())}") from error
