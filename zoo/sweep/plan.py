"""What a sweep is asked to do: by options, by a file, or both."""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from datamodules.errors import UserError
from zoo.sweep.axes import Axis, parse_grid, parse_search, parse_texts

OWN = ("--name", "--runs", "--seed_everything", "--ckpt_path", "--ckpt", "--from_stage")  # set by the sweep
OWN_REASON = "it gives each run a name, a seed and a folder"
INSTEAD = {"seed_everything": "use --seeds N", "config": "use --config FILE"}  # of varying it
FILE_KEYS = {"config", "grid", "search", "options"}
PLAIN_KEYS = {"trials", "seeds", "jobs", "out", "storage", "metric", "prune", "timeout"}
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
EPILOG = "All other options go to every `zoo fit`. docs/sweeps.md tells more."


@dataclass(frozen=True)
class Plan:
    """What a sweep is asked to do.

    Args:
        configs: experiments, as for `zoo fit`.
        axes: what is varied.
        is_grid: all combinations, or a search among them.
        options: further ones for every run.
        trials: settings in all.
        seeds: runs of each setting.
        jobs: trials at the same time.
        out: folder of the sweep.
        storage: file or URL of the study.
        metric: validation metric that settings are chosen by; higher is better.
        prune: stop runs that lag behind.
        timeout: seconds after which no further run begins; None for no limit.
    """

    configs: list[str]
    axes: list[Axis]
    is_grid: bool
    options: list[str]
    trials: int
    seeds: int
    jobs: int
    out: Path
    storage: str
    metric: str
    prune: bool
    timeout: float | None

    @property
    def experiment(self) -> str:
        return Path(self.configs[-1]).stem

    @property
    def fit_options(self) -> list[str]:
        """What every run has."""
        return [*(part for config in self.configs for part in ("--config", config)), *self.options]

    def identity(self) -> dict[str, Any]:
        """What must stay as it is for the runs that are there to count."""
        return {
            "kind": "grid" if self.is_grid else "search",
            "metric": self.metric,
            "keys": [[axis.name, axis.text] for axis in self.axes],
            "options": [option for option in self.options if not option.startswith("--wandb.")],
            "config": digest_of_configs(self.configs),
        }


class Parser(argparse.ArgumentParser):
    """Mistakes in one line."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message)


def read_plan(argv: list[str]) -> Plan:
    given, options = parser().parse_known_args(argv)
    content = read_sweep_file(Path(given.sweep)) if given.sweep else {}
    chosen = {key: content.get(key) for key in PLAIN_KEYS}
    chosen |= {key: getattr(given, key) for key in PLAIN_KEYS if getattr(given, key) is not None}
    configs = given.config or content.get("config") or []
    if not configs:
        raise UserError("a sweep needs an experiment: give --config FILE, or --sweep FILE that names one")
    if missing := [config for config in configs if not Path(config).is_file()]:
        raise UserError(f"no such configuration: {missing[0]}")
    options = [*content.get("options", []), *in_one_word(options)]
    if own := [option for option in options if option.partition("=")[0] in OWN]:
        raise UserError(f"{own[0]} is for the sweep to set: {OWN_REASON}")
    grid = merged(content.get("grid", []), parse_texts(given.grid or [], search=False))
    search = merged(content.get("search", []), parse_texts(given.search or [], search=True))
    if bool(grid) == bool(search):
        why = "takes one of them" if grid else "varies something"
        raise UserError(f"a sweep {why}: give --grid key=1,2 for all combinations, or --search key=1..9 --trials 20")
    if search and chosen["trials"] is None:
        raise UserError("--search needs --trials N: how many settings to try")
    check_keys(grid + search)
    stem = Path(given.sweep or configs[-1]).stem
    out = Path(str(chosen["out"] or Path("runs", "sweeps", stem)))
    return Plan(
        configs=configs,
        axes=grid + search,
        is_grid=bool(grid),
        options=options,
        trials=at_least_one("trials", chosen["trials"], sys.maxsize),
        seeds=at_least_one("seeds", chosen["seeds"], 1),
        jobs=at_least_one("jobs", chosen["jobs"], 1),
        out=out,
        storage=str(chosen["storage"] or out / "study.journal"),
        metric=str(chosen["metric"] or "val/nDCG@5"),
        prune=truth("prune", chosen["prune"], default=bool(search)),
        timeout=seconds(chosen["timeout"]),
    )


def parser() -> Parser:
    made = Parser(
        prog="python -m zoo sweep",
        description="Run many settings of an experiment, by grid or by search, and compare them.",
        epilog=EPILOG,
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--sweep", metavar="FILE", help="a sweep in a file, as in experiments/sweeps; options override it")
    add("--config", metavar="FILE", action="append", help="the experiment")
    add("--grid", metavar="KEY=V1,V2", nargs="+", action="extend", help="all combinations; A+B=1,2 sets two keys alike")
    add("--search", metavar="KEY=LO..HI", nargs="+", action="extend", help="TPE; LO..HI:log, or A|B|C for a choice")
    add("--trials", metavar="N", help="settings to try")
    add("--seeds", metavar="N", help="runs of each setting, with seeds from 0 (1)")
    add("--jobs", metavar="N", help="settings at the same time (1)")
    add("--out", metavar="DIR", help="folder of the sweep (runs/sweeps/NAME)")
    add("--storage", metavar="FILE_OR_URL", help="Optuna's study (DIR/study.journal); a database for several machines")
    add("--metric", metavar="NAME", help="validation metric to choose by, higher is better (val/nDCG@5)")
    add("--prune", metavar="BOOL", nargs="?", const="true", help="stop runs that lag behind (true with --search)")
    add("--timeout", metavar="TIME", help="begin no further run after so long, such as 90m or 8h")
    return made


def read_sweep_file(file: Path) -> dict[str, Any]:
    """Its content with axes parsed, and with paths that hold from here."""
    if not file.is_file():
        raise UserError(f"no such sweep: {file}")
    content = read_yaml(file)
    if not isinstance(content, dict) or not {"grid", "search"} & content.keys():
        raise UserError(f"{file}: expected `config` and `grid` or `search`")
    if unknown := sorted(content.keys() - FILE_KEYS - PLAIN_KEYS):
        raise UserError(f"{file}: unknown key {unknown[0]!r}; known are {', '.join(sorted(FILE_KEYS | PLAIN_KEYS))}")
    configs = content.get("config") or []
    configs = [configs] if isinstance(configs, str) else configs
    if not is_list_of_texts(configs):
        raise UserError(f"{file}: `config` is a file or a list of files")
    content["config"] = [os.path.relpath(file.parent / config) for config in configs]
    for kind, parse in (("grid", parse_grid), ("search", parse_search)):
        axes = content.get(kind) or {}
        if not isinstance(axes, dict) or not all(isinstance(values, list | str) for values in axes.values()):
            raise UserError(f"{file}: `{kind}` maps keys to their values, as in `model.head.samples: [1, 5, 10]`")
        content[kind] = [parse(str(key), values) for key, values in axes.items()]
    content["options"] = content.get("options") or []
    if not is_list_of_texts(content["options"]):
        raise UserError(f"{file}: `options` is a list, as in `options: [--data.limit_val=1000]`")
    return content


def read_yaml(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text("utf8"))
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{file} is not text in UTF-8") from error
    except yaml.YAMLError as error:
        raise UserError(f"{file} is not valid YAML: {' '.join(str(error).split())}") from error


def is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def in_one_word(options: Sequence[str]) -> list[str]:
    """Options with `--key value` as `--key=value`."""
    words: list[str] = []
    for word in options:
        if word.startswith("--"):
            words.append(word)
        elif words and "=" not in words[-1]:
            words[-1] += f"={word}"
        else:
            raise UserError(f"{word!r} belongs to no option")
    return words


def merged(of_file: list[Axis], given: list[Axis]) -> list[Axis]:
    """Axes of the command line stand in place of those of the same name."""
    check_keys(given)
    axes = {axis.name: axis for axis in of_file} | {axis.name: axis for axis in given}
    return list(axes.values())


def check_keys(axes: Sequence[Axis]) -> None:
    """Refuse keys that are varied twice, and those that would be varied in vain."""
    keys = [key for axis in axes for key in axis.keys]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise UserError(f"a setting is varied twice: {twice[0]}")
    if own := [key for key in keys if f"--{key}" in OWN or key in INSTEAD]:
        raise UserError(f"{own[0]} is for the sweep to set: {INSTEAD.get(own[0], OWN_REASON)}")


def at_least_one(name: str, value: Any, default: int) -> int:
    try:
        number = default if value is None else int(str(value))  # not the 2 of 2.7
    except ValueError:
        number = 0
    if number < 1:
        raise UserError(f"--{name}={value} is not a number from 1 on")
    return number


def truth(name: str, value: Any, default: bool) -> bool:
    known = {"true": True, "yes": True, "false": False, "no": False}
    if value is not None and str(value).lower() not in known:
        raise UserError(f"--{name}={value} is neither true nor false")
    return default if value is None else known[str(value).lower()]


def seconds(value: Any) -> float | None:
    """`90`, `90s`, `15m`, `8h` or `2d`."""
    if value is None:
        return None
    text = str(value)
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "s")
    try:
        found = float(number) * UNITS[unit]
    except ValueError:
        found = -1
    if not found >= 0:  # nor is nan
        raise UserError(f"--timeout={value} is no time: expected something as in 90m or 8h")
    return found


def digest_of_configs(configs: Sequence[str]) -> str:
    """Changes with the text of the experiments, or of the parts that they name."""
    digest = hashlib.sha256()
    for config in map(Path, configs):
        content = read_yaml(config)
        digest.update(config.read_bytes())
        for part in content.values() if isinstance(content, dict) else ():
            if isinstance(part, str) and part.endswith((".yaml", ".yml")) and (config.parent / part).is_file():
                digest.update((config.parent / part).read_bytes())
    return digest.hexdigest()
