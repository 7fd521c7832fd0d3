"""Run folders and loggers."""

from __future__ import annotations

import netrc
import os
import re
import shlex
import sys
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from filelock import FileLock
from lightning_fabric.loggers.csv_logs import _ExperimentWriter
from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning.loggers import CSVLogger, Logger, WandbLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter

from zoo.core.console import is_first_process, note
from zoo.core.csv_log import read_log, write_log
from zoo.core.errors import UserError, first_line
from zoo.core.lightning_internals import drop_anonymous
from zoo.core.run_lock import lock_run

FOLDER_VARIABLE = "ZOO_RUN_FOLDER"  # passes the run folder on to the processes that DDP starts
RUN_NAME = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(-sample)?(?:-(\d+))?")
WANDB_NAME = re.compile(r"(offline-)?run-(\d{8}_\d{6})-(.+)")
LOCKS: dict[Path, FileLock] = {}  # of run folders, held by this process
MIN_ROW_BYTES = 64  # lower bound of the size of a row in a W&B file


@dataclass
class WandbSettings:
    """Settings of Weights & Biases.

    Args:
        mode: `auto` is online if there is an API key, otherwise offline.
        project: project of the run.
        entity: user or team; by default that of the account.
        tags: tags of the run.
    """

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    project: str = "xmc-zoo"
    entity: str | None = None
    tags: list[str] = field(default_factory=list)


def run_folder(root: str, experiment: str, is_sample: bool, resume: bool = False) -> Path:
    """Create a run folder, or with `resume` find the newest one; all processes of a run get the same.

    The folder is locked until `close_run`, or until the first process ends.
    """
    if inherited := os.environ.get(FOLDER_VARIABLE):
        return Path(inherited)
    folder = newest_run(root, experiment, is_sample) if resume else None
    if folder is not None:
        note(f"resuming the run in {folder}")
    else:
        time = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        folder = Path(root) / experiment / (f"{time}-sample" if is_sample else time)
        if is_first_process():
            folder = make_unique_folder(folder)
    if is_first_process() and folder not in LOCKS:
        LOCKS[folder] = lock_run(folder)
    os.environ[FOLDER_VARIABLE] = str(folder)
    return folder


def newest_run(root: str, experiment: str, is_sample: bool) -> Path | None:
    """Find the newest run folder of an experiment, among runs on the sample or among the others."""
    runs = []
    for folder in Path(root, experiment).glob("*/"):
        match = RUN_NAME.fullmatch(folder.name)
        if match and bool(match[2]) == is_sample:
            runs.append((match[1], int(match[3] or 1), folder))
    return max(runs)[2] if runs else None


def make_unique_folder(wanted: Path) -> Path:
    """Create a folder; add a number to its name if another run started in the same second."""
    for number in count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"cannot create the run folder {folder}: {error.strerror}; change `runs`") from error
    raise AssertionError


def make_loggers(folder: Path, name: str, settings: WandbSettings) -> list[Logger]:
    """Create a CSV logger and, unless it is disabled or fails to start, a W&B logger; both append to existing logs."""
    # Flushed after each row: a killed run resumes from its checkpoint and needs all rows before it.
    loggers: list[Logger] = [AppendingLogger(folder, name="", version="", flush_logs_every_n_steps=1)]
    mode = wandb_mode(settings)
    if mode != "disabled" and is_first_process():
        try:
            loggers.append(start_wandb(folder, name, settings, mode))
        except Exception as error:  # a logger must not end the run
            if mode == "online":
                note(f"W&B: {first_line(error)}; logging offline instead")
                return make_loggers(folder, name, replace(settings, mode="offline"))
            note(f"W&B is disabled: {first_line(error)}")
    elif mode != "disabled":
        loggers.append(WandbLogger(name=name, save_dir=folder, project=settings.project))  # idle
    return loggers


def start_wandb(folder: Path, name: str, settings: WandbSettings, mode: str) -> WandbLogger:
    import wandb

    former = wandb_folders(folder)
    logger = WandbLogger(
        name=name,
        save_dir=folder,
        version=former[-1].id if former else None,
        resume="allow",
        project=settings.project,
        entity=settings.entity,
        tags=settings.tags,
        mode=mode,  # without it W&B would prompt for a login
        settings=wandb.Settings(silent=True, console="off", init_timeout=20),
    )
    drop_anonymous(logger)
    run: Any = logger.experiment
    offline = [str(part.folder) for part in wandb_folders(folder) if part.id == run.id and part.is_offline]
    if offline and former:
        # An offline run restarts at step 0, and the server drops steps that it has seen: start beyond all former ones.
        run.log({}, step=sum(part.size for part in former) // MIN_ROW_BYTES)
    # One command for each folder: `wandb sync` stops at a file that a killed run has left incomplete.
    upload = "upload with: " + "; ".join(f"wandb sync {shlex.quote(part)}" for part in offline)
    if mode == "offline":
        reason = "no API key" if settings.mode == "auto" else "as configured"
        note(f"W&B: offline ({reason}); {upload}")
    else:
        note(f"W&B: {run.url}" + (f"; partly logged offline: {upload}" if offline else ""))
    return logger


@dataclass
class WandbFolder:
    """A folder that W&B has written; each start of a run adds one."""

    folder: Path
    id: str
    is_offline: bool

    @property
    def size(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*.wandb"))


def wandb_folders(folder: Path) -> list[WandbFolder]:
    """Find the W&B folders of a run, oldest first."""
    found = []
    for part in folder.glob("wandb/*/"):
        if match := WANDB_NAME.fullmatch(part.name):
            found.append((match[2], part.name, WandbFolder(part, match[3], bool(match[1]))))
    return [part for *_, part in sorted(found, key=lambda entry: entry[:2])]


def wandb_mode(settings: WandbSettings) -> str:
    """Resolve `auto`."""
    if settings.mode != "auto":
        return settings.mode
    mode = os.environ.get("WANDB_MODE")
    if mode in ("offline", "disabled"):
        return mode
    return "online" if has_api_key() else "offline"


def has_api_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def close_run() -> None:
    """Finish the W&B run; the next run of this process gets a folder of its own."""
    os.environ.pop(FOLDER_VARIABLE, None)
    while LOCKS:
        LOCKS.popitem()[1].release()
    if "wandb" in sys.modules:
        sys.modules["wandb"].finish()


class AppendingLogger(CSVLogger):
    """CSV logger that appends to an existing file; Lightning's would warn and delete it."""

    @property
    @rank_zero_experiment
    def experiment(self) -> _ExperimentWriter:
        if self._experiment is None:
            self._experiment = AppendingWriter(self.log_dir)
        return self._experiment


class AppendingWriter(ExperimentWriter):
    def _check_log_dir_exists(self) -> None:
        """Called before the first write; Lightning's method deletes the file."""
        columns, _ = read_log(Path(self.metrics_file_path))
        if columns:
            self.metrics_keys = sorted(columns)
            self._rewrite_with_new_header(self.metrics_keys)  # drops an incomplete last row

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        file = Path(self.metrics_file_path)
        write_log(file, fieldnames, read_log(file)[1])
