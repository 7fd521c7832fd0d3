"""`zoo sweep`: train many configurations of one experiment, by grid or by search, with one `zoo fit` each."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shlex
import sys
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from zoo.analysis.sheets import csv_cell
from zoo.commands.sweep_options import read_plan
from zoo.commands.verbs import named_options
from zoo.core.console import note
from zoo.core.errors import UserError
from zoo.core.extras import require_extra
from zoo.core.files import atomic_write
from zoo.core.settings import read_yaml
from zoo.sweeps.axes import Axis, describe, first_setting, options_of
from zoo.sweeps.children import Lock, check_command
from zoo.sweeps.plan import Plan
from zoo.sweeps.trials import Trial, Trials, open_storage
from zoo.sweeps.workers import Fits, Workers

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

FIT = (sys.executable, "-m", "zoo", "fit")
HEADER = "# Written by `zoo sweep`; the same command resumes the sweep in this folder.\n"


@named_options("out", "storage", "metric", "seeds", "jobs")
def run_sweep(argv: list[str], program: Sequence[str] = FIT) -> None:
    """Train many configurations of an experiment, by grid or by search.

    Args:
        argv: arguments of the command line.
        program: command that trains one configuration.
    """
    plan = read_plan(argv)
    require_extra("sweep", "`zoo sweep`")
    storage, place, study = open_study(plan, program)
    trials = Trials(storage, study, plan.axes, plan.trials, plan.is_grid, place, plan.out / "locks")
    fits = Fits(plan.experiment, plan.axes, [*program, *plan.fit_options], plan.out / "runs", plan.metric)
    workers = Workers(trials, fits, plan.seeds, plan.jobs, plan.prune, plan.timeout, needs_values=not plan.is_grid)
    signal_number = workers.run()
    conclude(plan, trials, fits, whole=not signal_number)
    if signal_number:
        note(f"stopped; to resume: {shlex.join(['zoo', 'sweep', *argv])}")
        raise SystemExit(128 + signal_number)
    if any(trial.state == "FAIL" for trial in trials.latest()):
        raise SystemExit(1)


def open_study(plan: Plan, program: Sequence[str]) -> tuple[BaseStorage, str, str]:
    """Storage of the study, id of the folder and name of the study; an invalid sweep leaves no files."""
    file, identity = plan.out / "sweep.yaml", plan.identity()
    study = f"{plan.experiment}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:10]}"
    check_folder(plan.out)
    if place := known_place(file, identity):
        return open_storage(plan.storage), place, study
    note("checking that `zoo fit` accepts the first configuration")
    check_command([*program, *plan.fit_options, *options_of(plan.axes, first_setting(plan.axes))])
    storage = open_storage(plan.storage)
    with Lock(plan.out / "sweep.lock"):
        place = known_place(file, identity)  # another process may have written it
        if place is None:
            place = uuid.uuid4().hex[:12]
            with atomic_write(file) as aside:
                aside.write_text(HEADER + yaml.safe_dump({"place": place, **identity}, sort_keys=False), "utf8")
        return storage, place, study


def check_folder(out: Path) -> None:
    """Refuse a folder that cannot be created or written to."""
    there = next(path for path in (out, *out.absolute().parents) if os.path.exists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"`out={out}`: {there} is not a writable folder")


def known_place(file: Path, identity: dict[str, Any]) -> str | None:
    """Id of the folder if it has this sweep; a folder with another sweep is refused."""
    if not file.is_file():
        return None
    known = read_yaml(file)
    if not isinstance(known, dict) or not known.keys() >= {"place", *identity}:
        raise UserError(f"{file} is damaged: choose another `out`, or remove the file to start the sweep again")
    if changed := [key for key in identity if known.get(key) != identity[key]]:
        raise UserError(f"{file.parent} has another sweep, with different {changed[0]}: choose another `out`")
    return str(known["place"])


def conclude(plan: Plan, trials: Trials, fits: Fits, whole: bool) -> None:
    """Print failed trials, the comparison and the best configuration."""
    latest = trials.latest()
    values = {trial.number: fits.mean(trial, plan.seeds) for trial in latest}
    write_trials(plan.out / "trials.csv", plan.axes, latest, values)
    for trial in latest:
        if trial.state == "FAIL":
            note(f"failed: {describe(plan.axes, trial.values)}; {fits.complaint(trial, plan.seeds)}")
    if not whole:
        return
    elsewhere = sum(trial.state == "RUNNING" and trial.place != trials.place for trial in latest)
    if elsewhere:
        note(f"{elsewhere} trials are still running in other folders")
    complete = [trial for trial in latest if trial.state == "COMPLETE"]
    folders = {str(folder): None for trial in complete for folder in fits.folders(trial, plan.seeds)}
    if folders:
        show_table(list(folders), [axis.keys[0] for axis in plan.axes])
    measured = [(value, trial) for trial in complete if (value := values[trial.number]) is not None]
    if measured:
        value, best = max(measured, key=lambda pair: (pair[0], -pair[1].setting))
        command = [*plan.fit_options, *options_of(plan.axes, best.values)]
        print(f"\nbest {plan.metric}, {value:.4f}: {describe(plan.axes, best.values)}")
        print(shlex.join(["zoo", "fit", *command]), flush=True)


def show_table(folders: list[str], keys: list[str]) -> None:
    from zoo.commands.compare import compare

    try:
        compare(folders, by=",".join(["data", *keys]), partial=True)
    except UserError as error:  # a key that is not among the settings of a run, such as one of a callback
        note(f"{error}; comparing by experiment instead")
        compare(folders, partial=True)


def write_trials(file: Path, axes: Sequence[Axis], trials: Sequence[Trial], values: dict[int, float | None]) -> None:
    with atomic_write(file) as aside, aside.open("w", encoding="utf8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["number", "state", *(axis.name for axis in axes), "value"])
        for trial in trials:
            value = values[trial.number]
            settings = [csv_cell(str(trial.values.get(axis.name, ""))) for axis in axes]
            writer.writerow([trial.setting, trial.state, *settings, "" if value is None else value])
