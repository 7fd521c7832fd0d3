"""What a sweep does: parsed from the command line, a sweep file, or both."""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from zoo.core.errors import MANY, UserError, check_range, did_you_mean
from zoo.core.metrics import MONITOR, is_better_when_higher
from zoo.core.settings import read_yaml
from zoo.core.shipped import find_experiment
from zoo.sweeps.axes import Axis, parse_grid, parse_search, parse_texts

RESERVED = ("name", "runs", "seed_everything", "ckpt_path", "ckpt", "from_stage")  # the sweep sets them
INSTEAD = {"seed_everything": "use --seeds N", "config": "use --config"}
OWN_REASON = "each run has its own name, seed and folder"
FILE_KEYS = ("config", "grid", "search", "options")
PLAIN_KEYS = ("trials", "seeds", "jobs", "out", "storage", "metric", "prune", "timeout")
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}
USAGE = "zoo sweep --config NAME|FILE --grid|--search KEY=VALUES [...] [options]"
EPILOG = """All other options are passed to `zoo fit`. The same command resumes a sweep.

examples:
  zoo sweep --config lsfa_eurlex --grid model.head.samples=1,5,10 --seeds 3
  zoo sweep --config lsfa_eurlex --search model.head.samples=1..20 --trials 30
"""


@dataclass(frozen=True)
class Plan:
    """What a sweep does.

    Args:
        configs: experiments, as for `zoo fit`.
        axes: settings that are varied.
        is_grid: whether to run all combinations; otherwise TPE searches among them.
        options: further options of every run.
        trials: maximum number of trials.
        seeds: runs per trial.
        jobs: trials that run at the same time.
        out: folder of the sweep.
        storage: file or URL of the Optuna study.
        metric: validation metric to maximize.
        prune: stop runs that fall behind.
        timeout: seconds after which no further run is started; None for no limit.
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

    def __post_init__(self) -> None:
        check_range(1, MANY, seeds=self.seeds, jobs=self.jobs)

    @property
    def experiment(self) -> str:
        return Path(self.configs[-1]).stem

    @property
    def fit_options(self) -> list[str]:
        """Options of `zoo fit` that all runs share."""
        return [*(part for config in self.configs for part in ("--config", config)), *self.options]

    def identity(self) -> dict[str, Any]:
        """What a resumed sweep must have in common with the runs that exist."""
        return {
            "kind": "grid" if self.is_grid else "search",
            "metric": self.metric,
            "keys": [[axis.name, axis.text] for axis in self.axes],
            "options": [option for option in self.options if not option.startswith("--wandb.")],
            "config": digest_of_configs(self.configs),
        }


class Parser(argparse.ArgumentParser):
    """Raises errors instead of printing the usage."""

    def error(self, message: str) -> NoReturn:
        raise UserError(message.removeprefix("argument "))


def read_plan(argv: list[str]) -> Plan:
    """Parse the command line; its options override those of a sweep file."""
    given, options = parser().parse_known_args(argv)
    content: dict[str, Any] = {}
    if given.sweep:
        content = read_sweep_file(Path(given.sweep))
        plain = [f"--{key}={content[key]}" for key in PLAIN_KEYS if content.get(key) is not None]
        given, options = parser().parse_known_args([*plain, *argv])
    configs = given.config or content.get("config") or []
    if not configs:
        raise UserError("a sweep needs an experiment: give --config, or --sweep with a file that has `config`")
    for config in configs:
        find_experiment(config)
    options = [*content.get("options", []), *join_values(options)]
    for option in options:
        check_not_reserved(option.partition("=")[0].removeprefix("--"))
    grid = merge(content.get("grid", []), parse_texts(given.grid, search=False))
    search = merge(content.get("search", []), parse_texts(given.search, search=True))
    if bool(grid) == bool(search):
        raise UserError("give either --grid KEY=1,2 for all combinations, or --search KEY=1..9 with --trials 20")
    if search and given.trials is None:
        raise UserError("--search needs --trials N")
    check_keys(grid + search)
    if not is_better_when_higher(given.metric):
        raise UserError(f"--metric={given.metric}: lower is better, and a sweep maximizes its metric")
    out = Path(given.out or Path("runs", "sweeps", Path(given.sweep or configs[-1]).stem))
    return Plan(
        configs=configs,
        axes=grid + search,
        is_grid=bool(grid),
        options=options,
        trials=given.trials or sys.maxsize,
        seeds=given.seeds,
        jobs=given.jobs,
        out=out,
        storage=given.storage or str(out / "study.journal"),
        metric=given.metric,
        prune=bool(search) if given.prune is None else given.prune,
        timeout=given.timeout,
    )


def parser() -> Parser:
    made = Parser(
        usage=USAGE,
        description="Train many configurations of an experiment, by grid or by search.",
        epilog=EPILOG,
        formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26),
        allow_abbrev=False,
    )
    add = made.add_argument
    add("--config", metavar="NAME|FILE", action="append", help="experiment, as for `zoo fit`; can be repeated")
    add("--sweep", metavar="FILE", help="sweep file, as in experiments/sweeps; options override it")
    several: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
    add("--grid", metavar="KEY=V1,V2", **several, help="try all combinations; KEY1+KEY2=V1,V2 sets both keys")
    add("--search", metavar="KEY=LOW..HIGH", **several, help="search with TPE; also LOW..HIGH:log, and A|B|C")
    add("--trials", metavar="N", type=positive, help="maximum number of trials; required by --search")
    add("--seeds", metavar="N", type=positive, default=1, help="runs per trial, with seeds 0, 1, ... (default: 1)")
    add("--jobs", metavar="N", type=positive, default=1, help="trials that run at the same time (default: 1)")
    add("--metric", metavar="NAME", default=MONITOR, help="validation metric to maximize (default: %(default)s)")
    add(
        "--prune",
        metavar="BOOL",
        type=boolean,
        nargs="?",
        const=True,
        help="stop runs that fall behind the median (default: true with --search)",
    )
    add("--timeout", metavar="TIME", type=seconds, help="start no further run after this time, such as 90m or 8h")
    add("--out", metavar="DIR", help="folder of the sweep (default: runs/sweeps/NAME)")
    add(
        "--storage",
        metavar="FILE|URL",
        help="Optuna study; a database URL shares it between machines (default: DIR/study.journal)",
    )
    return made


def read_sweep_file(file: Path) -> dict[str, Any]:
    """Content of a sweep file, with axes parsed and paths made relative to the working directory."""
    if not file.is_file():
        raise UserError(f"no such sweep: {file}")
    content = read_yaml(file)
    if not isinstance(content, dict) or not {"grid", "search"} & content.keys():
        raise UserError(f"{file}: expected `config` and `grid` or `search`")
    known = [*FILE_KEYS, *PLAIN_KEYS]
    if unknown := [str(key) for key in content if key not in known]:
        raise UserError(f"{file}: unknown key {unknown[0]!r}; {did_you_mean(unknown[0], known)}")
    configs = content.get("config") or []
    configs = [configs] if isinstance(configs, str) else configs
    if not is_list_of_texts(configs):
        raise UserError(f"{file}: `config` must be a file or a list of files")
    beside = {config: file.parent / config for config in configs}
    content["config"] = [os.path.relpath(path) if path.is_file() else config for config, path in beside.items()]
    for kind, parse in (("grid", parse_grid), ("search", parse_search)):
        axes = content.get(kind) or {}
        if not isinstance(axes, dict) or not all(isinstance(values, list | str) for values in axes.values()):
            raise UserError(f"{file}: `{kind}` must map keys to values, as in `model.head.samples: [1, 5, 10]`")
        content[kind] = [parse(str(key), values) for key, values in axes.items()]
    content["options"] = content.get("options") or []
    if not is_list_of_texts(content["options"]):
        raise UserError(f"{file}: `options` must be a list, as in `options: [--data.limit_val=1000]`")
    return content


def is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def join_values(options: Sequence[str]) -> list[str]:
    """Replace `--key value` by `--key=value`."""
    words: list[str] = []
    for word in options:
        if word.startswith("--"):
            words.append(word)
        elif words and "=" not in words[-1]:
            words[-1] += f"={word}"
        else:
            raise UserError(f"unexpected argument {word!r}")
    return words


def merge(of_file: list[Axis], given: list[Axis]) -> list[Axis]:
    """Axes of the command line replace those of the file with the same name."""
    check_keys(given)
    axes = {axis.name: axis for axis in of_file} | {axis.name: axis for axis in given}
    return list(axes.values())


def check_keys(axes: Sequence[Axis]) -> None:
    keys = [key for axis in axes for key in axis.keys]
    if twice := [key for key in keys if keys.count(key) > 1]:
        raise UserError(f"{twice[0]} is varied twice")
    for key in keys:
        check_not_reserved(key)


def check_not_reserved(key: str) -> None:
    if key in RESERVED or key in INSTEAD:
        raise UserError(f"{key} is set by the sweep: {INSTEAD.get(key, OWN_REASON)}")


def positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive integer")
    return int(text)


def boolean(text: str) -> bool:
    if text.lower() not in BOOLEANS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return BOOLEANS[text.lower()]


def seconds(text: str) -> float:
    """Parse `90`, `90s`, `15m`, `8h` or `2d`."""
    number, unit = (text[:-1], text[-1]) if text[-1:] in UNITS else (text, "s")
    try:
        found = float(number) * UNITS[unit]
    except ValueError:
        found = -1
    if not 0 <= found < math.inf:  # also refuses nan
        raise argparse.ArgumentTypeError(f"{text!r} is not a time such as 90m or 8h")
    return found


def digest_of_configs(configs: Sequence[str]) -> str:
    """Hash of the experiments and of the files that they include."""
    digest = hashlib.sha256()
    waiting = [find_experiment(config) for config in configs]
    for config in waiting:  # grows: an included file may extend another one
        content = read_yaml(config)
        digest.update(config.read_bytes())
        for part in content.values() if isinstance(content, dict) else ():
            if isinstance(part, str) and part.endswith((".yaml", ".yml")):
                included = config.parent / part
                waiting += [included] if included.is_file() and included not in waiting else []
    return digest.hexdigest()
