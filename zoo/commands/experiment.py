"""Resolves experiment files, which may refer to others, before LightningCLI reads them."""

from __future__ import annotations

from argparse import ArgumentError
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser
from pytorch_lightning import Trainer
from pytorch_lightning.cli import LightningArgumentParser

from backbones.transformer import check_self_contained
from callbacks import Stage
from datamodules import TextDataModule
from zoo.commands.own_modules import allow_working_folder, modules_named_in
from zoo.commands.parsers import OneLine
from zoo.commands.recipe import apply_recipe
from zoo.core.errors import UserError, did_you_mean
from zoo.core.settings import parse_yaml, read_yaml
from zoo.core.shipped import find_experiment
from zoo.training.checkpoint import read_checkpoint, without_places
from zoo.training.hub_models import located
from zoo.training.module import ZooModule
from zoo.training.stored import read_config, reading, with_settings
from zoo.training.trust import (
    MODEL,
    RUN,
    check_trust,
    class_specs,
    import_paths,
    imports_limited_to,
    public_paths,
    refusal,
    texts,
)

SECTIONS = {"trainer", "model", "data", "stages", "best", "last", "wandb"}
STAGE_SETTINGS = tuple(field.name for field in fields(Stage))
PLACES = {"dirpath", "filename"}  # where `best.ckpt` is written: a checkpoint may not say it
CLASS_KEYS = {"class_path", "init_args", "dict_kwargs"}
BASE = "extends"
SETTINGS = {"seed_everything", "name", "runs", "final_test", "ckpt", "ckpt_path", "from_stage", "recipe", "budget"}


class OneLineParser(OneLine, LightningArgumentParser):
    """Lightning's parser, with errors in one line."""


def resolve_files(argv: list[str], folder: Path, trust: Sequence[str] = ()) -> list[str]:
    """Resolve every `--config`, apply `--stages.*` to them, and replace `--ckpt FILE` by the settings in FILE.

    Settings from FILE may only name classes of the zoo and of modules in `trust`.
    """
    rest: list[str] = []
    configs: list[tuple[str, Path]] = []
    named = list(argv)  # texts of the user, in which modules of the working folder may be named
    overrides: dict[str, Any] = {}
    budget: str | None = None
    options, verb = iter(argv), argv[0] if argv else ""
    for argument in options:
        option, given, value = argument.partition("=")
        if option not in ("--config", "-c", "--ckpt", "--budget") and not option.startswith("--stages."):
            rest.append(argument)
            continue
        value = value if given else next(options, "")
        if not value or (not given and value.startswith("--")):
            raise UserError(f"{option} needs a value")
        if option == "--budget":
            budget = value
            continue
        if option.startswith("--stages."):
            try:
                overrides[option.removeprefix("--")] = parse_yaml(value)
            except ValueError as error:
                raise UserError(f"{option}={value} is not valid YAML: {error}") from error
            continue
        place = folder / str(len(configs) + len(rest))  # two files may have the same name
        place.mkdir()
        if option == "--ckpt":
            value = str(located(value))
            rest += ["--ckpt" if verb == "fit" else "--ckpt_path", value]
            if verb != "fit" or not any(argument.startswith(("--config", "-c")) for argument in argv):
                configs.append((str(config_of(value, verb, place, trust)), place))
        else:
            configs.append((str(find_experiment(value)), place))
            named += (text for _, text in texts(read_experiment(Path(configs[-1][0]))))
    allow_working_folder(modules_named_in(named))
    staged = [i for i, (config, _) in enumerate(configs) if "stages" in read_experiment(Path(config))] or [0]
    if budget and not any("recipe" in read_experiment(Path(config)) for config, _ in configs):
        raise UserError(f"--budget={budget} needs an experiment with a recipe, such as --config best")
    files = [
        resolve_config(*config, overrides if i == staged[-1] else {}, rest, budget) for i, config in enumerate(configs)
    ]
    if overrides and not files:
        raise UserError("--stages.NAME.SETTING needs an experiment with stages: give one with --config")
    return [*rest[:1], *(part for file in files for part in ("--config", str(file))), *rest[1:]]


def config_of(checkpoint: str, verb: str, folder: Path, trust: Sequence[str] = ()) -> Path:
    """Write the settings of a checkpoint that a command needs to a file."""
    stored = read_checkpoint(checkpoint)["zoo"]
    kept = {"seed_everything", "name", "model", "data"}
    if verb == "fit":
        kept |= {"trainer", "stages", "best", "last"}
    with reading(checkpoint):
        config = {key: value for key, value in read_config(stored).items() if key in kept and value is not None}
        config["model"]["backbone"] = with_settings(config["model"].get("backbone"), stored.get("backbone") or {})
        config["data"] = without_places(config.get("data"))
        if "best" in config:
            config["best"] = {key: value for key, value in config["best"].items() if key not in PLACES}
        check_settings(config, trust)
    file = folder / f"{Path(checkpoint).stem}.yaml"
    file.write_text(yaml.safe_dump(config, sort_keys=False), "utf8")
    return file


def check_settings(config: dict[str, Any], trust: Sequence[str]) -> None:
    """Refuse settings from a checkpoint that name other classes than it may; nothing is instantiated."""
    allowed = import_paths(config, RUN, check_trust(trust))
    allowed |= public_paths("Adam", RUN) | {f"{Stage.__module__}.{Stage.__name__}"}  # defaults of arguments
    parser = ArgumentParser(exit_on_error=False)
    parser.add_class_arguments(ZooModule, "model", skip={"space"})
    parser.add_subclass_arguments(TextDataModule, "data")
    parser.add_class_arguments(Trainer, "trainer")
    parser.add_argument("--stages", type=list[Stage] | None)
    others = {"seed_everything", "name", "best", "last"}  # plain values, which are not classes
    with imports_limited_to(allowed):
        try:
            parsed = parser.parse_object(deepcopy({key: value for key, value in config.items() if key not in others}))
        except (ArgumentError, ValueError) as error:
            raise refusal(error) from error
    for spec in class_specs(parsed.as_dict()) if not trust else ():
        if spec["class_path"] in public_paths("Transformer", MODEL):
            given = spec["init_args"]
            check_self_contained(given["name"], given["pretrained"], given["config"])


def resolve_config(
    config: str, folder: Path, overrides: dict[str, Any], options: Sequence[str] = (), budget: str | None = None
) -> Path:
    """Write an experiment to `folder`, with the files it refers to included and dotted keys applied.

    A section can be the path of a file, relative to the experiment, and dotted keys override single settings:
    `trainer: parts/trainer.yaml` and `trainer.max_epochs: 12`. Stages are addressed by name:
    `stages.finetune.epochs: 2`. `extends: other.yaml` starts from another experiment, of which sections are replaced
    and single settings overridden. `overrides` are dotted keys from the command line. A `recipe` is replaced by the
    model and stages that it picks for the corpus, which `options` of the command line may change.
    """
    resolved = read_experiment(Path(config))
    if "recipe" in resolved:
        resolved = apply_recipe(resolved, options, budget, folder)
    for option, value in overrides.items():
        override_stage(resolved.get("stages"), option, value)
    target = folder / Path(config).name
    target.write_text(yaml.safe_dump(resolved, sort_keys=False), "utf8")
    return target


def read_experiment(path: Path, extending: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Sections of an experiment: those of the one that it extends, its own sections, then its dotted keys."""
    content = read_sections(path)
    base = content.pop(BASE, None)
    if base is not None and not isinstance(base, str):
        raise UserError(f"{path}: `{BASE}` is {base!r}: expected the path of an experiment")
    if path.resolve() in extending:
        raise UserError(f"{path}: `{BASE}` leads back to this file")
    resolved = {} if base is None else read_experiment(path.parent / base, (*extending, path.resolve()))
    for key in content:
        section = str(key).split(".")[0]
        if section not in SECTIONS | SETTINGS:
            known = sorted(SECTIONS | SETTINGS | {BASE})
            raise UserError(f"{path}: unknown key {key!r}; {did_you_mean(section, known)}")
    for key, value in sorted(content.items(), key=lambda item: str(item[0]).count(".")):  # sections, then overrides
        if key in SECTIONS and isinstance(value, str) and value.endswith((".yaml", ".yml")):
            value = read_sections(path.parent / value)
        if key == "stages" and value is not None:
            value = list_of_stages(str(path), value)
        elif key in SECTIONS and key != "stages" and not isinstance(value, dict | str):
            raise UserError(f"{path}: `{key}` is {value!r}: expected settings or the path of a YAML file")
        if str(key).startswith("stages."):
            override_stage(resolved.get("stages"), str(key), value)
        else:
            set_nested(resolved, str(key).split("."), value, f"{path}: `{key}`")
    return resolved


def set_nested(settings: dict[str, Any], keys: list[str], value: Any, where: str) -> None:
    """Set a value by its path; as in options, `data.max_length` means `data.init_args.max_length`."""
    for parent, following in pairwise(keys):
        settings = settings_of(settings, parent, following, where)
    settings[keys[-1]] = value


def settings_of(settings: dict[str, Any], parent: str, key: str, where: str) -> dict[str, Any]:
    """Settings in which `key` of `parent` is to be set, created if need be."""
    value = settings.get(parent)
    value = {"class_path": value} if isinstance(value, str) else {} if value is None else value
    if not isinstance(value, dict):
        raise UserError(f"{where}: `{parent}` is {value!r} and has no settings")
    settings[parent] = value
    if "class_path" in value and key not in {*CLASS_KEYS, ""}:
        return settings_of(value, "init_args", "", where)
    return value


def list_of_stages(config: str, value: Any) -> list[dict[str, Any]]:
    stages = value.get("stages") if isinstance(value, dict) else value  # a file has them under the same key
    if not isinstance(stages, list) or not all(isinstance(stage, dict) and "name" in stage for stage in stages):
        raise UserError(f"{config}: `stages` must be a list of stages, each with a name")
    return stages


def override_stage(stages: list[dict[str, Any]] | None, key: str, value: Any) -> None:
    """Override a setting of a stage, by a key such as `stages.finetune.epochs`."""
    names = [stage["name"] for stage in stages or []]
    _, name, *path = key.split(".")
    if name not in names or not path:
        known = f"the stages are {', '.join(names)}" if names else "the experiment has no stages"
        raise UserError(f"{key} is not a stages.NAME.SETTING: {known}")
    if path[0] not in STAGE_SETTINGS:
        raise UserError(f"{key}: unknown setting {path[0]!r} of a stage; {did_you_mean(path[0], STAGE_SETTINGS)}")
    stage = (stages or [])[names.index(name)]
    if len(path) > 1 and stage.get(path[0]) is None:
        raise UserError(f"{key}: stage {name!r} has no {path[0]!r}; set it first")
    set_nested(stage, path, value, key)


def read_sections(path: Path) -> dict[str, Any]:
    content = read_yaml(path)
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected sections such as `model:` and `data:`")
    return content
