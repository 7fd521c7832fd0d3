"""Options of `zoo sweep`, and those that it shares with `zoo reproduce`."""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from zoo.commands.verbs import BOOLEANS
from zoo.core.errors import UserError
from zoo.core.metrics import MONITOR, is_better_when_higher
from zoo.core.shipped import find_experiment
from zoo.sweeps.axes import Axis, parse_texts
from zoo.sweeps.plan import PLAIN_KEYS, Plan, read_sweep_file

RESERVED = ("name", "runs", "seed_everything", "ckpt_path", "ckpt", "from_stage")  # the sweep sets them
INSTEAD = {"seed_everything": "use --seeds N", "config": "use --config"}
OWN_REASON = "each run has its own name, seed and folder"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
USAGE = "zoo sweep --config NAME|FILE --grid|--search KEY=VALUES [...] [options]"
EPILOG = """All other options are passed to `zoo fit`. The same command resumes a sweep.

examples:
  zoo sweep --config lsfa_eurlex --grid model.head.samples=1,5,10 --seeds 3
  zoo sweep --config lsfa_eurlex --search model.head.samples=1..20 --trials 30
"""


class Parser(argparse.ArgumentParser):
    """Raises errors instead of printing the usage."""

    def __init__(self, usage: str, description: str, epilog: str) -> None:
        super().__init__(
            usage=usage,
            description=description,
            epilog=epilog,
            formatter_class=lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26),
            allow_abbrev=False,
        )

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
    made = Parser(USAGE, "Train many configurations of an experiment, by grid or by search.", EPILOG)
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
