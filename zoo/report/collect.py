"""Evidence of a run from before runs kept it, collected from its checkpoint and its corpus."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from datamodules.errors import UserError, first_line
from datamodules.progress import note
from zoo.results import Run

if TYPE_CHECKING:
    from datamodules.base import TextDataModule

FILE = "evidence.npz"
BEST = Path("checkpoints") / "best.ckpt"


def ensure_evidence(run: Run) -> None:
    """Collect and keep what is not there yet; where that fails, one line says why."""
    if (run.folder / FILE).exists() or not (run.folder / BEST).is_file():
        return
    note(f"{run.name}: looking into {BEST}, as the run has no {FILE} yet")
    try:
        collect_evidence(run)
    except Exception as error:  # of a corpus that is gone, of classes that have changed: the page does without
        note(f"{run.name}: its pictures of the model are left out: {first_line(error)}")


def collect_evidence(run: Run) -> None:
    from callbacks.evidence import collect
    from zoo.catalog import load_plugins
    from zoo.checkpoint import rebuild

    load_plugins()
    module, data = rebuild(run.folder / BEST), corpus_of(run.config)
    if data.is_sample != bool(run.facts.get("sample")) or data.space.names != module.space.names:
        raise UserError("its corpus is not what it was trained on: is ZOO_DATA set?")
    collect(module, data, run.folder, str(run.facts.get("split") or "test")).save(run.folder)


def corpus_of(config: dict[str, Any]) -> TextDataModule:
    """The datamodule of a configuration."""
    from jsonargparse import ArgumentParser

    from datamodules.base import TextDataModule

    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(TextDataModule, "data")
    found = parser.instantiate_classes(parser.parse_object({"data": config["data"]})).data
    assert isinstance(found, TextDataModule)
    return found
