"""Where a run lives, and what it logs to."""

from __future__ import annotations

import csv
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

from lightning_fabric.loggers.csv_logs import _ExperimentWriter
from lightning_fabric.loggers.logger import rank_zero_experiment
from pytorch_lightning.loggers import CSVLogger, Logger, WandbLogger
from pytorch_lightning.loggers.csv_logs import ExperimentWriter

from datamodules.errors import UserError, first_line
from datamodules.files import written_whole
from datamodules.progress import is_first_process, note

FOLDER_VARIABLE = "ZOO_RUN_FOLDER"  # tells the processes that a launcher starts where the first one writes
RUN_NAME = re.compile(r"(\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d)(-sample)?(?:-(\d+))?")
WANDB_NAME = re.compile(r"(offline-)?run-(\d{8}_\d{6})-(.+)")
LEAST_ROW_BYTES = 64  # a row in a file of W&B's takes at least this much, its time and step alone


@dataclass
class WandbSettings:
    """Weights & Biases.

    Args:
        mode: `auto` is online with an API key and offline without one.
        project: where runs go.
        entity: user or team, the account's default if not given.
        tags: for the run.
    """

    mode: Literal["auto", "online", "offline", "disabled"] = "auto"
    project: str = "xmc-zoo"
    entity: str | None = None
    tags: list[str] = field(default_factory=list)


def run_folder(root: str, experiment: str, is_sample: bool, resume: bool = False) -> Path:
    """The folder of a run, the same one for all its processes: a new one, or with `resume` the newest there is."""
    if inherited := os.environ.get(FOLDER_VARIABLE):
        return Path(inherited)
    folder = newest_run(root, experiment, is_sample) if resume else None
    if folder is not None:
        note(f"continuing the run in {folder}")
    else:
        time = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
        wanted = Path(root) / experiment / (f"{time}-sample" if is_sample else time)
        folder = make_new(wanted) if is_first_process() else wanted
    os.environ[FOLDER_VARIABLE] = str(folder)
    return folder


def newest_run(root: str, experiment: str, is_sample: bool) -> Path | None:
    """The newest run folder of an experiment by its name; runs on the sample and others are kept apart."""
    runs = []
    for folder in Path(root, experiment).glob("*/"):
        match = RUN_NAME.fullmatch(folder.name)
        if match and bool(match[2]) == is_sample:
            runs.append((match[1], int(match[3] or 1), folder))
    return max(runs)[2] if runs else None


def make_new(wanted: Path) -> Path:
    """Two runs may start in one second: the later one gets a number."""
    for number in count(1):
        folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"cannot make the run folder {folder}: {error.strerror}; choose with --runs") from error
    raise AssertionError


def make_loggers(folder: Path, name: str, settings: WandbSettings) -> list[Logger]:
    """csv files always; W&B unless it is disabled or fails to start. What the folder has logged before stays."""
    # each row is written at once: a kill must not lose those before the checkpoint that a run continues from
    loggers: list[Logger] = [AppendingLogger(folder, name="", version="", flush_logs_every_n_steps=1)]
    mode = wandb_mode(settings)
    if mode != "disabled" and is_first_process():
        try:
            loggers.append(start_wandb(folder, name, settings, mode))
        except Exception as error:  # a run of hours must not die of its logbook
            if mode == "online":
                note(f"W&B: {first_line(error)}; logging offline instead")
                return make_loggers(folder, name, replace(settings, mode="offline"))
            note(f"W&B is left out: {first_line(error)}")
    elif mode != "disabled":
        loggers.append(WandbLogger(name=name, save_dir=folder, project=settings.project))  # of another rank: idle
    return loggers


def start_wandb(folder: Path, name: str, settings: WandbSettings, mode: str) -> WandbLogger:
    import wandb

    former = wandb_parts(folder)
    logger = WandbLogger(
        name=name,
        save_dir=folder,
        version=former[-1].id if former else None,
        resume="allow",
        project=settings.project,
        entity=settings.entity,
        tags=settings.tags,
        mode=mode,  # decided here: W&B itself would ask
        settings=wandb.Settings(silent=True, console="off", init_timeout=20),
    )
    logger._wandb_init.pop("anonymous", None)  # W&B warns of this setting, which Lightning always passes
    run: Any = logger.experiment
    parts = [part for part in wandb_parts(folder) if part.id == run.id]
    offline = [str(part.folder) for part in parts if part.is_offline]
    if offline and former:
        # Offline, W&B starts again from step 0, and its server goes by steps: these are beyond all former ones.
        run.log({}, step=sum(part.size for part in former) // LEAST_ROW_BYTES)
    # one by one: within one command W&B stops at a part whose end a kill has cut off
    upload = "upload with: " + "; ".join(f"wandb sync {shlex.quote(part)}" for part in offline)
    if mode == "offline":
        why = "no API key" if settings.mode == "auto" else "as asked"
        note(f"W&B: offline ({why}); {upload}")
    else:
        note(f"W&B: {run.url}" + (f"; some of it was logged offline: {upload}" if offline else ""))
    return logger


@dataclass
class WandbPart:
    """A folder of W&B's: each start of a run makes one."""

    folder: Path
    id: str
    is_offline: bool

    @property
    def size(self) -> int:
        return sum(file.stat().st_size for file in self.folder.glob("*.wandb"))


def wandb_parts(folder: Path) -> list[WandbPart]:
    """What W&B has kept in a run folder, the oldest first."""
    found = []
    for part in folder.glob("wandb/*/"):
        if match := WANDB_NAME.fullmatch(part.name):
            found.append((match[2], part.name, WandbPart(part, match[3], bool(match[1]))))
    return [part for *_, part in sorted(found, key=lambda entry: entry[:2])]


def wandb_mode(settings: WandbSettings) -> str:
    """`auto`, made definite."""
    if settings.mode != "auto":
        return settings.mode
    wanted = os.environ.get("WANDB_MODE", "")
    if wanted in ("offline", "disabled"):
        return wanted
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
    """Write what loggers still hold, and let the next run of this process have a folder of its own."""
    os.environ.pop(FOLDER_VARIABLE, None)
    if "wandb" in sys.modules:
        sys.modules["wandb"].finish()


class AppendingLogger(CSVLogger):
    """Lightning's, but rows of a former part of the run stay, where it would warn and delete them."""

    @property
    @rank_zero_experiment
    def experiment(self) -> _ExperimentWriter:
        if self._experiment is None:
            self._experiment = AppendingWriter(self.log_dir)
        return self._experiment


class AppendingWriter(ExperimentWriter):
    def _check_log_dir_exists(self) -> None:
        """Called before anything is written: Lightning's own deletes here."""
        columns, _ = read_rows(Path(self.metrics_file_path))
        if columns:
            self.metrics_keys = sorted(columns)
            self._rewrite_with_new_header(self.metrics_keys)  # without a row that was cut off

    def _rewrite_with_new_header(self, fieldnames: list[str]) -> None:
        file = Path(self.metrics_file_path)
        write_rows(file, fieldnames, read_rows(file)[1])


def read_rows(file: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and rows of a csv file; a kill may have cut off the last line, which is left out then."""
    text = file.read_text("utf8", errors="replace") if file.exists() else ""
    reader = csv.DictReader(text.split("\n")[:-1])
    rows = [row for row in reader if None not in row and None not in row.values()]
    return list(reader.fieldnames or []), rows


def write_rows(file: Path, columns: list[str], rows: list[dict[str, str]]) -> None:
    with written_whole(file) as aside, aside.open("w", encoding="utf8", newline="") as out:
        writer = csv.DictWriter(out, fieldnames=columns)
        writer.writeheader()
        writer.writerows(rows)


def drop_rows_after(folder: Path, step: int) -> None:
    """Forget what a killed run has logged beyond the checkpoint it continues from; before loggers are made."""
    file = folder / ExperimentWriter.NAME_METRICS_FILE
    columns, rows = read_rows(file)
    if columns:
        tests = [name for name in columns if name.startswith("test/")]  # repeated when the run ends
        kept = [row for row in rows if float(row["step"]) <= step and not any(row[name] for name in tests)]
        write_rows(file, columns, kept)
