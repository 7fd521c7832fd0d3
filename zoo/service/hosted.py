"""A model that is loaded and warmed up, and what the service tells about it."""

from __future__ import annotations

import gc
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from backbones import Transformer
from heads.base import Head
from zoo.core.cores import available_cores
from zoo.core.run_folder import CHECKPOINTS, RunFolder
from zoo.service.options import ServiceOptions
from zoo.training.ensemble_tagger import EnsembleTagger
from zoo.training.ranking_model import RankingModel
from zoo.training.tagger import Tag, Tagger, load

WARM_UP = [" ".join(["warm up"] * words) for words in (1, 16, 64, 256)]
LICENCE = re.compile(r"^licen[cs]e:\s*(\S.*?)\s*$", re.MULTILINE | re.IGNORECASE)
CARD = "README.md"
SHOWN_METRICS = ("P@1", "P@5", "nDCG@5", "PSP@5", "macro_f1@5", "micro_f1", "macro_f1")
MAX_CARD = 2**20  # bytes
CPU_BATCH = 16  # texts of similar length: padding costs a CPU more than small batches do
CPU_TOKENS = 512  # of a transformer, which a single long text keeps as busy as many
CHARS_PER_TOKEN = 5


class Kind(NamedTuple):
    """What texts must have in common to be tagged in one call of the model."""

    k: int
    threshold: float | Literal["auto"] = 0.0
    explain: bool = False


@dataclass(frozen=True)
class Stamp:
    """Which version of a file has been read."""

    modified: int  # nanoseconds
    size: int
    inode: int

    @classmethod
    def of(cls, path: str) -> Stamp | None:
        """Stamp of a file; None if there is none."""
        try:
            found = Path(path).expanduser().stat()
        except (OSError, RuntimeError, ValueError):
            return None
        return cls(found.st_mtime_ns, found.st_size, found.st_ino)


class HostedModel:
    """A tagger that is ready to answer.

    Args:
        options: settings of the service.
    """

    def __init__(self, options: ServiceOptions) -> None:
        self.stamp = Stamp.of(options.ckpt)  # before reading, so that a change while it is read shows as one
        self.tagger: Tagger = load(options.ckpt, options.device, options.trust)
        on_cpu = self.tagger.module.device.type == "cpu"
        modules = modules_of(self.tagger)
        self.few_tokens = on_cpu and any(isinstance(one.backbone, Transformer) for one in modules)
        self.tagger.batch_size = min(options.max_batch, CPU_BATCH) if on_cpu else options.max_batch
        self.loaded = datetime.now(UTC)
        self.facts = facts_of(self.tagger, options, self.stamp)
        self.tag(WARM_UP, Kind(min(5, len(self.tagger.names))))
        settle_memory()

    @property
    def names(self) -> list[str]:
        return self.tagger.names

    @property
    def counts(self) -> list[int]:
        return self.tagger.module.space.counts

    def tag(self, texts: list[str], kind: Kind) -> list[dict[str, Any]]:
        """Tag texts; each answer has the labels and whether the model knows a word of the text."""
        found: dict[int, dict[str, Any]] = {}
        for rows in self._parts(texts):
            for row, tags in zip(rows, self.tagger.stream([texts[row] for row in rows], *kind), strict=True):
                found[row] = {"labels": [as_json(tag, kind.explain) for tag in tags], "known": tags.known}
        return [found[row] for row in range(len(texts))]

    def _parts(self, texts: list[str]) -> list[list[int]]:
        """Positions of texts that are tagged together. On a CPU, a transformer gets few tokens at a time."""
        rows = sorted(range(len(texts)), key=lambda row: len(texts[row]))
        if not self.few_tokens:
            return [rows]
        parts: list[list[int]] = [[]]
        for row in rows:
            length = min(len(texts[row]) / CHARS_PER_TOKEN, self.tagger.vocabulary.max_length)
            if parts[-1] and length * (len(parts[-1]) + 1) > CPU_TOKENS:
                parts.append([])
            parts[-1].append(row)
        return parts


def as_json(tag: Tag, explain: bool) -> dict[str, Any]:
    answer = {"label": tag.label, "score": round(tag.score, 6)}
    if not explain:
        return answer
    return answer | {"spans": [{"start": s.start, "end": s.end, "weight": round(s.weight, 4)} for s in tag.spans]}


def settle_memory() -> None:
    """Spare the garbage collector the objects of libraries and models, which last; a former model is freed."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()


def set_threads(options: ServiceOptions) -> None:
    """Give each worker its share of the cores: threads that wait for each other make all of them slower."""
    torch.set_num_threads(options.threads or max(1, min(available_cores() // options.workers, torch.get_num_threads())))


def facts_of(tagger: Tagger, options: ServiceOptions, stamp: Stamp | None) -> dict[str, Any]:
    """What clients may know about a model; without paths of this machine."""
    path = Path(options.ckpt)
    run = run_of(path)
    modules = modules_of(tagger)
    space = tagger.module.space
    return {
        "name": name_of(path, run),
        "version": f"{stamp.modified:x}-{stamp.size:x}" if stamp else None,
        "modified": datetime.fromtimestamp(stamp.modified / 1e9, UTC).isoformat() if stamp else None,
        "heads": [type(module.head).__name__ for module in modules],
        "backbones": [type(module.backbone).__name__ for module in modules],
        "labels": len(space.names),
        "train_documents": space.num_documents,
        "max_length": tagger.vocabulary.max_length,
        "threshold": tagger.threshold,
        "calibrated": tagger.calibration is not None,
        "corpus": run.corpus if run else None,
        "metrics": shown_metrics(run) if run else {},
        "licence": licence_of(path),
        "can_learn": options.learn and stamp is not None and can_learn(tagger),
    }


def modules_of(tagger: Tagger) -> list[RankingModel]:
    """The model of a tagger, or those of an ensemble."""
    return [member.module for member in tagger.members] if isinstance(tagger, EnsembleTagger) else [tagger.module]


def can_learn(tagger: Tagger) -> bool:
    """Whether a model takes labels from a few documents."""
    return not isinstance(tagger, EnsembleTagger) and type(tagger.module.head).learn_labels is not Head.learn_labels


def run_of(path: Path) -> RunFolder | None:
    """The finished run that a checkpoint is from."""
    folder = path.expanduser().absolute().parent
    try:
        return RunFolder.read(folder.parent if folder.name == CHECKPOINTS else folder)
    except (OSError, ValueError):
        return None


def name_of(path: Path, run: RunFolder | None) -> str:
    """Name of a model in paths of the API: letters, digits, dots, dashes and underscores."""
    name = run.experiment if run else path.name.removesuffix(".ckpt")
    return re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model"


def shown_metrics(run: RunFolder) -> dict[str, float]:
    return {name: round(run.metrics[name], 4) for name in SHOWN_METRICS if name in run.metrics}


def licence_of(path: Path) -> str | None:
    """Licence that the model card beside a checkpoint states."""
    card = path.expanduser().parent / CARD
    try:
        text = card.read_text("utf8") if card.stat().st_size <= MAX_CARD else ""
    except (OSError, ValueError, RuntimeError):
        return None
    front = text.removeprefix("---\n").partition("\n---\n")[0] if text.startswith("---\n") else ""
    found = LICENCE.search(front)
    return found[1] if found else None
