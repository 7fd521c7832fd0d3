"""Where a run lives, and what it logs to."""

from __future__ import annotations

import netrc
import os
import sys
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import count
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pytorch_lightning.loggers import CSVLogger, Logger, WandbLogger

from datamodules.base import note
from datamodules.errors import UserError, first_line
from datamodules.progress import is_first_process

FOLDER_VARIABLE = "ZOO_RUN_FOLDER"  # tells the processes that a launcher starts where the first one writes


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


def run_folder(root: str, experiment: str, is_sample: bool) -> Path:
    """A new folder `<root>/<experiment>/<time>`, the same one for all processes of a run."""
    if inherited := os.environ.get(FOLDER_VARIABLE):
        return Path(inherited)
    time = datetime.now().strftime("%Y-%m-%d_%H-%M-%S")
    wanted = Path(root) / experiment / (f"{time}-sample" if is_sample else time)
    folder = make_new(wanted) if is_first_process() else wanted
    os.environ[FOLDER_VARIABLE] = str(folder)
    return folder


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
    """csv files always; W&B unless it is disabled or fails to start."""
    csv = CSVLogger(folder, name="", version="")
    _ = csv.experiment  # opened while the folder is empty: it warns otherwise
    loggers: list[Logger] = [csv]
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

    logger = WandbLogger(
        name=name,
        save_dir=folder,
        project=settings.project,
        entity=settings.entity,
        tags=settings.tags,
        mode=mode,  # decided here: W&B itself would ask
        settings=wandb.Settings(silent=True, console="off", init_timeout=20),
    )
    logger._wandb_init.pop("anonymous", None)  # W&B warns of this setting, which Lightning always passes
    run: Any = logger.experiment
    if mode == "offline":
        why = "no API key" if settings.mode == "auto" else "as asked"
        note(f"W&B: offline ({why}); upload with: wandb sync {Path(run.dir).parent}")
    else:
        note(f"W&B: {run.url}")
    return logger


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
