"""Loading from the Hugging Face hub: a local folder first, then the local cache, then the network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Literal, TypeVar

from zoo.core.errors import UserError, first_line

T = TypeVar("T")
TIMEOUT_SECONDS = 10
SETTINGS_ALONE = ContextVar("SETTINGS_ALONE", default=False)
LONGEST = 160  # characters of an error message of another library


@contextmanager
def from_settings_alone() -> Iterator[None]:
    """Build encoders from their settings, without a folder or the hub: a checkpoint has its own weights."""
    token = SETTINGS_ALONE.set(True)
    try:
        yield
    finally:
        SETTINGS_ALONE.reset(token)


def load_model(name: str, load: Callable[..., T], what: str, setting: str) -> T:
    """Call `load(source, local_files_only=...)` with a folder or a hub name, and turn errors into a `UserError`."""
    if SETTINGS_ALONE.get():
        raise UserError(f"{setting} is {name!r}, and a checkpoint must not load a model from a folder or the hub")
    folder = Path(name).expanduser()
    try:
        if folder.is_dir():
            with quiet():
                return load(str(folder), local_files_only=True)
        check_hub_name(name)
        try:
            with quiet():
                return load(name, local_files_only=True)
        except Exception as error:  # not in the local cache, or incomplete
            check_hub(name, "" if isinstance(error, OSError) else f" or incomplete ({reason(error)})")
            return load(name, local_files_only=False)  # not quiet: large downloads show the library's progress bar
    except Exception as error:  # broken files may raise anything
        raise UserError(f"no {what} {name!r}: {reason(error)}; set {setting} to a folder or another name") from error


def check_hub_name(name: str) -> None:
    if name.startswith(("/", ".", "~")) or name.count("/") > 1:
        raise UserError("there is no such folder")


def check_hub(name: str, trouble: str, kind: Literal["model", "dataset"] = "model") -> None:
    """Raise `UserError` if the hub cannot provide a repository; loading it would retry for a minute instead."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        (HfApi().model_info if kind == "model" else HfApi().dataset_info)(name, timeout=TIMEOUT_SECONDS)
    except GatedRepoError as error:
        raise UserError("it is gated: request access on the hub, then log in with `hf auth login`") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(f"there is no such folder, and no such {kind} on the hub") from error
    except Exception as error:  # network errors of many types
        why = "HF_HUB_OFFLINE is set" if isinstance(error, OfflineModeIsEnabled) else "the hub cannot be reached"
        raise UserError(f"it is not on this machine{trouble}, and {why}: download it once while online") from error


def reason(error: BaseException) -> str:
    """First sentence of another library's error message."""
    text = first_line(error).rstrip()
    if text.endswith(":"):
        text = " ".join(str(error).split())
    text = re.split(r"\.\s+(?=[A-Z])", text)[0].rstrip(".")
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress progress bars and log messages of transformers."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()
