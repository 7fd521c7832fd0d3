"""Models on a hub: `owner/name` in place of a checkpoint."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from datamodules.prepare.hub import TIMEOUT_SECONDS
from zoo.core.errors import UserError, first_line
from zoo.training.model_folder import FILES, NEEDED, WEIGHTS, largest

PART, REVISION = r"[A-Za-z0-9][\w.-]{0,95}", r"[\w.][\w./-]{0,99}"
NAME = re.compile(rf"(?P<name>{PART}/{PART})(@(?P<revision>{REVISION}))?", re.ASCII)
COMMIT = re.compile(r"[0-9a-f]{40}")


def located(path: str | Path) -> Path:
    """Path of a checkpoint, or of the weights of a model on the hub, which are downloaded to its cache.

    A local file wins. `owner/name@revision` is a branch, a tag or a commit.
    """
    file = Path(path).expanduser()
    try:
        if file.exists() or not (found := NAME.fullmatch(str(path))) or file.suffix == ".ckpt":
            return file
    except OSError:  # the name is too long
        return file
    return downloaded(found["name"], found["revision"]) / WEIGHTS


def downloaded(name: str, revision: str | None) -> Path:
    """Folder of a model in the cache of the hub; only files of a shared model are downloaded."""
    from huggingface_hub import snapshot_download

    def fetch(commit: str | None, local: bool) -> Path:
        return Path(snapshot_download(name, revision=commit, allow_patterns=list(FILES), local_files_only=local))

    shown = name if revision is None else f"{name}@{revision}"
    if revision is not None and COMMIT.fullmatch(revision):  # a commit never changes
        try:
            if (folder := fetch(revision, local=True) / WEIGHTS).is_file():
                return folder.parent
        except Exception:  # not in the cache
            pass
    try:
        info = info_of(name, revision)
    except OSError as unreachable:
        try:
            folder = fetch(revision, local=True)
        except Exception:  # of many types
            raise UserError(f"no such checkpoint: {shown}; it is not in the cache, and {unreachable}") from unreachable
        return folder
    sizes = {each.rfilename: each.size or 0 for each in info.siblings or [] if each.rfilename in FILES}
    if missing := [file for file in NEEDED if file not in sizes]:
        raise UserError(f"{shown} on the hub is not a model of the zoo: it has no {missing[0]}")
    if large := [file for file, size in sizes.items() if size > largest(file)]:
        raise UserError(
            f"{shown} on the hub: {large[0]} has {sizes[large[0]]:,} bytes, more than {largest(large[0]):,}"
        )
    try:
        folder = fetch(revision, local=False)
    except Exception as error:  # of many types
        raise UserError(f"{shown} cannot be downloaded: {first_line(error)}") from error
    for file, size in sizes.items():
        if not (folder / file).is_file() or (folder / file).stat().st_size != size:
            raise UserError(f"{shown}: {file} was not downloaded completely: remove {folder} and try again")
    return folder


def info_of(name: str, revision: str | None) -> Any:
    """What the hub knows about a model; `OSError` if it cannot be reached."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        return HfApi().model_info(name, revision=revision, files_metadata=True, timeout=TIMEOUT_SECONDS)
    except GatedRepoError as error:
        raise UserError(f"{name} is gated: request access on the hub, then log in with `hf auth login`") from error
    except RevisionNotFoundError as error:
        raise UserError(f"{name} on the hub has no revision {revision!r}") from error
    except (RepositoryNotFoundError, HFValidationError) as error:
        raise UserError(f"no such checkpoint: {name}; neither a file here nor a model on the hub") from error
    except Exception as error:  # network errors of many types
        why = "HF_HUB_OFFLINE is set" if isinstance(error, OfflineModeIsEnabled) else "the hub cannot be reached"
        raise OSError(why) from error
