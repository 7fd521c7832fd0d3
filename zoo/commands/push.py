"""`zoo push`: share a trained model on the Hugging Face hub."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from tempfile import TemporaryDirectory

from zoo.commands.output import print_summary
from zoo.core.console import note
from zoo.core.errors import UserError, first_line, printable
from zoo.core.run_folder import CHECKPOINTS, RunFolder
from zoo.deploy.model_card import model_card, shared_results
from zoo.training.checkpoint import read_checkpoint
from zoo.training.hub_models import NAME
from zoo.training.model_folder import CARD, METRICS, write_model
from zoo.training.tagger import load
from zoo.training.trust import texts

LICENCE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,40}")


def push(
    run: str,
    name: str,
    *,
    private: bool = False,
    revision: str | None = None,
    licence: str | None = None,
    trust: list[str] | None = None,
) -> None:
    """Share a trained model on the Hugging Face hub.

    Everybody can then use it by its name: `zoo.load("owner/name")`, or `--ckpt owner/name`. Weights are safetensors,
    everything else is text: configuration, tokenizer, labels, thresholds, metrics, and a model card written from the
    run. You must be logged in (`hf auth login`, or a token in HF_TOKEN).

    Args:
        run: run folder, whose best checkpoint is shared, or a checkpoint.
        name: name on the hub, such as owner/name; it is created if it does not exist.
        private: create a private repository.
        revision: branch to push to (default: main).
        licence: licence of the model in the card, such as apache-2.0 or cc-by-4.0.
        trust: module outside the zoo with classes that the checkpoint may use, such as my_heads; can be repeated.

    Examples:
        zoo push runs/lsfa_reuters/RUN my-team/lsfa-reuters --licence apache-2.0
        zoo push best.ckpt my-team/model --private
    """
    found = NAME.fullmatch(name)
    if not found or found["revision"]:
        raise UserError(f"{name!r} is not a name on the hub, such as owner/name")
    if licence and not LICENCE.fullmatch(licence):
        raise UserError(f"`licence={licence}` is not an identifier of the hub, such as apache-2.0")
    checkpoint, results = find_run(Path(run).expanduser())
    tagger = load(checkpoint, "cpu", trust or ())
    content = read_checkpoint(checkpoint)
    if paths := sorted(set(local_paths(content["zoo"].get("config")))):
        note(f"the configuration names paths of this machine, which become public: {printable(', '.join(paths))}")
    with TemporaryDirectory(prefix="zoo-push-") as place:
        folder = Path(place)
        write_model(content, folder)
        (folder / CARD).write_text(model_card(tagger, results, name, licence), "utf8")
        if results:
            (folder / METRICS).write_text(json.dumps(shared_results(results), indent=2) + "\n", "utf8")
        size = sum(file.stat().st_size for file in folder.iterdir())
        url = upload(folder, name, private, revision)
    print_summary(model=name, size=f"{size / 1e6:,.1f} MB", commit=url)


def find_run(path: Path) -> tuple[Path, RunFolder | None]:
    """The checkpoint to share, and the finished run that it is from."""
    checkpoint = path / CHECKPOINTS / "best.ckpt" if path.is_dir() else path
    if not checkpoint.is_file():
        raise UserError(f"no such run or checkpoint: {path}")
    folder = checkpoint.absolute().parent
    try:
        results = RunFolder.read(folder.parent if folder.name == CHECKPOINTS else folder)
    except (OSError, ValueError) as error:
        note(f"{checkpoint} is not in a finished run: the model card has no metrics ({first_line(error)})")
        return checkpoint, None
    return checkpoint, results


def local_paths(config: object) -> Iterator[str]:
    """Absolute paths in the configuration of a run."""
    from zoo.core.settings import parse_yaml

    for _, text in texts(parse_yaml(config) if isinstance(config, str) else {}):
        if PurePosixPath(text).is_absolute() or PureWindowsPath(text).is_absolute():
            yield text


def upload(folder: Path, name: str, private: bool, revision: str | None) -> str:
    """Upload a folder as one commit, and return its address."""
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        done = api.upload_folder(
            repo_id=name, folder_path=folder, revision=revision, commit_message="Upload a model of xmc-zoo"
        )
    except Exception as error:  # of many types: no network, no token, no permission
        raise UserError(
            f"{name} cannot be pushed: {first_line(error)}; log in with `hf auth login`, or set HF_TOKEN to a token "
            "that may write"
        ) from error
    return str(done.commit_url)
