"""What a sweep does, and sweep files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zoo.core.errors import MANY, UserError, check_range, did_you_mean
from zoo.core.settings import read_yaml
from zoo.core.shipped import find_experiment
from zoo.sweeps.axes import Axis, parse_grid, parse_search

FILE_KEYS = ("config", "grid", "search", "options")
PLAIN_KEYS = ("trials", "seeds", "jobs", "out", "storage", "metric", "prune", "timeout")


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
