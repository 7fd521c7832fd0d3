"""Trials of a sweep in an Optuna study, which several processes and machines can share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zoo.core.errors import UserError, first_line
from zoo.sweeps.axes import Axis, grid_settings
from zoo.sweeps.children import Lock, Watch

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial
    from optuna.trial import Trial as Live

NO_VALUE = float("-inf")  # value of a trial without validation results; Optuna needs one to complete a trial
JOURNAL_START = b'{"op_code"'
RETRY_SECONDS = 0.5
OPEN_ATTEMPTS = 5  # if several processes create the tables of a database at once, only one succeeds


@dataclass
class Trial:
    """One attempt at a setting.

    Args:
        number: Optuna's number.
        setting: index of the setting; a failed setting gets another trial.
        attempt: index of the attempt at this setting.
        place: id of the folder of its runs; only a sweep with the same `out` can resume it.
        state: Optuna's state, such as `RUNNING`.
        values: values by the names of axes.
        value: mean validation result, or the last one if the trial was pruned.
    """

    number: int
    setting: int
    attempt: int
    place: str
    state: str
    values: dict[str, Any]
    value: float | None
    claim: Lock | None = field(default=None, repr=False)


class Trials:
    """Hands out trials so that no setting is run twice, and stores their results.

    A trial belongs to the folder of its runs, and to the process that holds its lock there. A trial that is RUNNING
    without a locked file was interrupted and is resumed. If two processes start the same setting at the same time, the
    trial with the lower number counts.

    Args:
        storage: Optuna storage.
        study: name of the study.
        axes: settings that are varied.
        wanted: number of settings; for a grid, at most the number of combinations.
        is_grid: whether settings are the combinations in order; otherwise TPE suggests them.
        place: id of this folder.
        locks: folder of the locks.
    """

    def __init__(
        self,
        storage: BaseStorage,
        study: str,
        axes: Sequence[Axis],
        wanted: int,
        is_grid: bool,
        place: str,
        locks: Path,
    ) -> None:
        import optuna

        self.storage, self.name, self.axes, self.place, self.locks = storage, study, axes, place, locks
        self.grid = grid_settings(axes) if is_grid else []
        self.wanted = min(wanted, len(self.grid)) if is_grid else wanted
        optuna.create_study(study_name=study, storage=storage, direction="maximize", load_if_exists=True)
        self.study_id = storage.get_study_id_from_name(study)
        self.guard = threading.Lock()
        self.taken: set[int] = set()  # numbers; a process resumes a trial at most once
        self.failed_before = {trial.number for trial in self.latest() if trial.state == "FAIL"}

    def study(self, setting: int = 0) -> Study:
        """The study with a sampler seeded by the setting, so that suggestions do not depend on the process."""
        import optuna

        sampler, pruner = optuna.samplers.TPESampler(seed=setting), optuna.pruners.MedianPruner()
        return optuna.load_study(study_name=self.name, storage=self.storage, sampler=sampler, pruner=pruner)

    def latest(self) -> list[Trial]:
        """Latest attempt at each setting that was started."""
        found: dict[int, Trial] = {}
        for frozen in self.study().get_trials(deepcopy=False):  # in ascending order
            trial = from_optuna(frozen)
            known = found.get(trial.setting)
            if trial.setting < self.wanted and (known is None or trial.attempt > known.attempt):
                found[trial.setting] = trial
        return [found[setting] for setting in sorted(found)]

    def take(self, lacks_runs: Callable[[Trial], bool]) -> Trial | None:
        """Next trial to run: one that was interrupted, failed in an earlier sweep, lacks runs, or is new."""
        with self.guard:
            latest = self.latest()
            for trial in latest:
                if trial.place != self.place or trial.number in self.taken:
                    continue
                if trial.state == "FAIL" and trial.number in self.failed_before:
                    self.taken.add(trial.number)
                    if again := self._begin(trial.setting, trial.attempt + 1, trial.values):
                        return again
                unfinished = trial.state == "RUNNING" or (trial.state == "COMPLETE" and lacks_runs(trial))
                if unfinished and self._claim(trial):
                    return trial
            begun = {trial.setting for trial in latest}
            for setting in range(self.wanted):
                if setting not in begun and (new := self._begin(setting, 0, self.grid[setting] if self.grid else {})):
                    return new
            return None

    def others_at_work(self) -> bool:
        """Whether another process runs trials of this folder, which we take over if it is killed."""
        mine = [trial for trial in self.latest() if trial.place == self.place and trial.state == "RUNNING"]
        return any(trial.number not in self.taken for trial in mine)

    def _begin(self, setting: int, attempt: int, values: Mapping[str, Any]) -> Trial | None:
        """Start a trial, unless another process has started the same one; without values TPE suggests them."""
        from optuna.trial import TrialState, create_trial

        mark = {"setting": setting, "attempt": attempt, "place": self.place}
        fixed = {"fixed_params": dict(values)} if values else {}  # the key that Optuna uses for enqueued trials
        template = create_trial(state=TrialState.RUNNING, user_attrs=mark, system_attrs=fixed)
        identity = self.storage.create_new_trial(self.study_id, template)
        trial = from_optuna(self.storage.get_trial(identity))
        before = [other for other in self._all() if other.number < trial.number]
        if any((other.setting, other.attempt) == (setting, attempt) for other in before):
            self.end(trial, "FAIL")
            return None
        return trial if self._claim(trial) else None

    def _claim(self, trial: Trial) -> bool:
        lock = Lock(self.locks / f"{trial.number}.lock")
        if not lock.try_acquire():
            lock.close()
            return False
        self.taken.add(trial.number)
        trial.claim = lock
        if self._all()[trial.number].state != trial.state:  # it has just finished
            self.release(trial)
            return False
        if trial.state == "RUNNING":  # an interrupted trial keeps its values
            live = self._live(trial)
            trial.values = {axis.name: axis.suggest(live) for axis in self.axes}
        return True

    def _all(self) -> list[Trial]:
        """All trials in order of their numbers."""
        return [from_optuna(frozen) for frozen in self.study().get_trials(deepcopy=False)]

    def _live(self, trial: Trial) -> Live:
        from optuna.trial import Trial as Live

        identity = self.storage.get_trial_id_from_study_id_trial_number(self.study_id, trial.number)
        return Live(self.study(trial.setting), identity)

    def watch(self, trial: Trial) -> Watch:
        """A function that reports validation results to the study and returns whether to prune the trial."""
        live, reported = self._live(trial), 0
        known = self.study().get_trials(deepcopy=False)[trial.number].intermediate_values  # before an interruption

        def is_behind(values: list[float]) -> bool:
            nonlocal reported
            for step in range(reported + 1, len(values) + 1):
                reported = step
                if step not in known:
                    live.report(values[step - 1], step)
                if live.should_prune():
                    return True
            return False

        return is_behind

    def end(self, trial: Trial, state: str, value: float | None = None) -> None:
        from optuna.trial import TrialState

        self.study().tell(trial.number, value, TrialState[state], skip_if_finished=True)

    def release(self, trial: Trial) -> None:
        if trial.claim is not None:
            trial.claim.close()
            trial.claim = None


def from_optuna(frozen: FrozenTrial) -> Trial:
    mark = frozen.user_attrs
    value = None if frozen.value == NO_VALUE else frozen.value
    values = frozen.system_attrs.get("fixed_params") or dict(frozen.params)
    return Trial(frozen.number, mark["setting"], mark["attempt"], mark["place"], frozen.state.name, values, value)


def open_storage(where: str) -> BaseStorage:
    """Open a database by its URL, or a journal file."""
    import optuna
    from optuna.storages import JournalStorage, RDBStorage, get_storage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if "://" not in where:
        try:
            Path(where).parent.mkdir(parents=True, exist_ok=True)
            with open(where, "ab+") as file:
                file.seek(0)
                if not JOURNAL_START.startswith(file.read(len(JOURNAL_START))):  # Optuna would append to any file
                    raise UserError(f"`storage={where}` is a file, but not an Optuna journal")
            return JournalStorage(JournalFileBackend(where))
        except OSError as error:
            raise UserError(f"`storage={where}`: {error.strerror}") from error
    # SQLite's default timeout of 5 seconds is too short for several processes
    settings = {"connect_args": {"timeout": 60}} if where.startswith("sqlite") else {}
    for attempt in range(OPEN_ATTEMPTS):
        try:
            return get_storage(RDBStorage(where, engine_kwargs=settings))  # adds a cache
        except Exception as error:
            if attempt + 1 == OPEN_ATTEMPTS or isinstance(error, ImportError | ValueError):
                kind = where.partition("://")[0]  # the rest may contain a password
                raise UserError(f"`storage={kind}://...` cannot be opened: {first_line(error)}") from error
            time.sleep(RETRY_SECONDS * (attempt + 1))
    raise AssertionError
