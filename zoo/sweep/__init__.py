"""`python -m zoo sweep`: many settings of one experiment, by grid or by search, in as many runs of `zoo fit`."""

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

from datamodules.errors import UserError
from datamodules.files import written_whole
from datamodules.progress import note
from zoo.sweep.axes import Axis, describe, first_setting, options_of
from zoo.sweep.children import Lock, check_command
from zoo.sweep.plan import Plan, read_plan
from zoo.sweep.trials import Trial, Trials, open_storage
from zoo.sweep.workers import Fits, Workers

if TYPE_CHECKING:
    from optuna.storages import BaseStorage

FIT = (sys.executable, "-m", "zoo", "fit")
HEADER = "# Made by `python -m zoo sweep`: the same command goes on with what is in this folder.\n"


def run_sweep(argv: list[str], program: Sequence[str] = FIT) -> None:
    """Run, or go on with, a sweep; `program` is what trains."""
    plan = read_plan(argv)
    storage, place, study = settle(plan, program)
    trials = Trials(storage, study, plan.axes, plan.trials, plan.is_grid, place, plan.out / "locks")
    fits = Fits(plan.experiment, plan.axes, [*program, *plan.fit_options], plan.out / "runs", plan.metric)
    workers = Workers(trials, fits, plan.seeds, plan.jobs, plan.prune, plan.timeout, needs_values=not plan.is_grid)
    signal_number = workers.run()
    conclude(plan, trials, fits, whole=not signal_number)
    if signal_number:
        note(f"stopped; to go on: {shlex.join(['python', '-m', 'zoo', 'sweep', *argv])}")
        raise SystemExit(128 + signal_number)
    if any(trial.state == "FAIL" for trial in trials.latest()):
        raise SystemExit(1)


def settle(plan: Plan, program: Sequence[str]) -> tuple[BaseStorage, str, str]:
    """The study's storage, and the ids of the folder and of the study; a sweep that is refused leaves nothing here."""
    file, identity = plan.out / "sweep.yaml", plan.identity()
    study = f"{plan.experiment}-{hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:10]}"
    check_folder(plan.out)
    if place := known_place(file, identity):
        return open_storage(plan.storage), place, study
    note("checking that zoo fit accepts the settings")
    check_command([*program, *plan.fit_options, *options_of(plan.axes, first_setting(plan.axes))])
    storage = open_storage(plan.storage)
    with Lock(plan.out / "sweep.lock"):
        place = known_place(file, identity)  # another process may have been faster
        if place is None:
            place = uuid.uuid4().hex[:12]
            with written_whole(file) as aside:
                aside.write_text(HEADER + yaml.safe_dump({"place": place, **identity}, sort_keys=False), "utf8")
        return storage, place, study


def check_folder(out: Path) -> None:
    """Refuse a folder that cannot be made or written to."""
    there = next(path for path in (out, *out.absolute().parents) if os.path.exists(path))
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise UserError(f"--out={out}: {there} is not a folder that can be written to")


def known_place(file: Path, identity: dict[str, Any]) -> str | None:
    """The id of a folder that has this sweep; one of another sweep is refused."""
    if not file.is_file():
        return None
    known = yaml.safe_load(file.read_text("utf8"))
    if changed := [key for key in identity if known.get(key) != identity[key]]:
        names = {"config": "content of the experiment", "keys": "order of keys, or other keys or values"}
        what = {**names, "kind": "kind, grid or search"}.get(changed[0], changed[0])
        raise UserError(f"{file.parent} has a sweep with another {what}: give this one another --out")
    return str(known["place"])


def conclude(plan: Plan, trials: Trials, fits: Fits, whole: bool) -> None:
    """Failed trials, the table, and the best setting."""
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
        note(f"{elsewhere} settings are still being run from other folders")
    complete = [trial for trial in latest if trial.state == "COMPLETE"]
    folders = {str(folder): None for trial in complete for folder in fits.folders(trial, plan.seeds)}
    if folders:
        show_table(list(folders), [axis.keys[0] for axis in plan.axes])
    measured = [(value, trial) for trial in complete if (value := values[trial.number]) is not None]
    if measured:
        value, best = max(measured, key=lambda pair: (pair[0], -pair[1].setting))
        command = [*plan.fit_options, *options_of(plan.axes, best.values)]
        print(f"\nbest {plan.metric}, {value:.4f}: {describe(plan.axes, best.values)}")
        print(shlex.join(["python", "-m", "zoo", "fit", *command]), flush=True)


def show_table(folders: list[str], keys: list[str]) -> None:
    from zoo.compare import compare

    try:
        compare(folders, by=",".join(["data", *keys]))
    except UserError as error:  # a key that a run's settings do not have, such as one of a callback in a list
        note(f"{error}; a row for each setting instead")
        compare(folders)


def write_trials(file: Path, axes: Sequence[Axis], trials: Sequence[Trial], values: dict[int, float | None]) -> None:
    with written_whole(file) as aside, aside.open("w", encoding="utf8", newline="") as out:
        writer = csv.writer(out)
        writer.writerow(["number", "state", *(axis.name for axis in axes), "value"])
        for trial in trials:
            value = values[trial.number]
            settings = [trial.values.get(axis.name, "") for axis in axes]
            writer.writerow([trial.setting, trial.state, *settings, "" if value is None else value])
