"""Models and datasets of the Hugging Face hub: from a folder, from what was got before, and only then from the net."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeVar

from datamodules.errors import UserError, first_line

T = TypeVar("T")
PATIENCE = 10  # seconds in which the hub must answer
LONGEST = 160  # characters of another library's reason


def load_model(name: str, load: Callable[..., T], what: str, option: str) -> T:
    """What `load(source, local_files_only=...)` makes of a folder or a name; what goes wrong is told in one line."""
    folder = Path(name).expanduser()
    try:
        if folder.is_dir():
            with quiet():
                return load(str(folder), local_files_only=True)
        if name.startswith(("/", ".", "~")) or name.count("/") > 1:
            raise UserError("there is no such folder")
        try:
            with quiet():
                return load(name, local_files_only=True)
        except Exception as error:  # it was not got before, or not all of it
            ask_hub(name, "" if isinstance(error, OSError) else f" whole ({reason(error)})")
            return load(name, local_files_only=False)  # with the library's bar: it may be half a gigabyte
    except Exception as error:  # files of another kind may raise anything
        advice = f"a folder that has one can be given with {option}"
        raise UserError(f"no {what} {name!r}: {reason(error)}; {advice}") from error


def ask_hub(name: str, trouble: str, kind: Literal["model", "dataset"] = "model") -> None:
    """Whether the hub has it: one request, where loading would try again for a minute."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, HFValidationError, OfflineModeIsEnabled, RepositoryNotFoundError

    try:
        (HfApi().model_info if kind == "model" else HfApi().dataset_info)(name, timeout=PATIENCE)
    except GatedRepoError as error:
        raise UserError("the hub gives it to those who ask for it: log in with `hf auth login`") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(f"there is no such folder, nor such a {kind} of the hub") from error
    except Exception as error:  # of the net, of many kinds
        why = "HF_HUB_OFFLINE is set" if isinstance(error, OfflineModeIsEnabled) else "the hub cannot be reached"
        raise UserError(f"it is not on this machine{trouble}, and {why}: get it once while online") from error


def reason(error: BaseException) -> str:
    """The first sentence of what another library says."""
    text = first_line(error).rstrip()
    if text.endswith(":"):
        text = " ".join(str(error).split())
    text = re.split(r"\.\s+(?=[A-Z])", text)[0].rstrip(".")
    return text if len(text) <= LONGEST else text[:LONGEST] + " ..."


@contextmanager
def quiet() -> Iterator[None]:
    """None of the library's bars and reports."""
    from transformers.utils import logging

    before = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        logging.enable_progress_bar()
