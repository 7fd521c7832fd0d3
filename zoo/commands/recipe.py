"""Recipes: experiments whose model is chosen by what the corpus and the machine are like, within a budget of time."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from datamodules import TextDataModule
from heads.engines.one_vs_rest import SMALL
from zoo.commands.parsers import OneLine
from zoo.core.console import note
from zoo.core.cores import available_cores
from zoo.core.errors import UserError
from zoo.core.extras import is_installed

RECIPES = ("blend",)
UNITS = {"s": 1, "m": 60, "h": 3600}
FOLDS = 3
MANY_LABELS = 10_000  # in validation documents, from which the ranker learns on them
LEAST_HELD_OUT = 0.02  # for thresholds alone
HELD_OUT = 80  # documents that a threshold needs, as long as they are at most a tenth of all
SPEED = 30  # of a GPU, in CPU cores
EPOCHS = 10  # of a network
TOKENS = 200  # that a network reads
ENOUGH = 5000  # documents from which a network alone is better than the nearest documents


@dataclass(frozen=True)
class Facts:
    """What a choice depends on.

    Attributes:
        documents: number of training documents.
        labels: number of labels.
        pairs: number of (document, label) pairs.
        words: mean number of different words of a document, or of features.
        tokens: mean number of tokens of a document.
        has_values: whether documents are features instead of texts.
        val_labels: number of labels of the validation documents.
        has_val: whether the corpus has validation documents of its own.
        cores: number of CPU cores.
        gpu: whether there is a GPU.
        engines: whether the libraries of linear models are installed.
    """

    documents: int
    labels: int
    pairs: int
    words: float
    tokens: float
    has_values: bool
    val_labels: int
    has_val: bool
    cores: int
    gpu: bool
    engines: bool

    @classmethod
    def of(cls, data: TextDataModule) -> Facts:
        rows, targets, val = data.prepared.rows("train"), data.train_targets(), data.prepared.rows("val")
        sample = data.train_words()[:: max(1, len(targets) // 2000)]
        return cls(
            documents=len(targets),
            labels=data.space.num_labels,
            pairs=len(targets.indices),
            words=float(np.diff(sample.indptr).mean()),
            tokens=float(rows.lengths.mean()),
            has_values=data.prepared.vocabulary.has_values,
            val_labels=len(data.targets("val").indices) if len(val) else 0,
            has_val="val" in data.corpus.sources,
            cores=available_cores(),
            gpu=torch.cuda.is_available(),
            engines=is_installed("linear"),
        )

    @property
    def learns_on_val(self) -> bool:
        return self.val_labels >= MANY_LABELS

    @property
    def fits(self) -> float:
        """Number of fits of a linear model, in units of one to all documents."""
        return 1 if self.learns_on_val else FOLDS


@dataclass(frozen=True)
class Choice:
    """A member of the model, with its estimated time in seconds."""

    name: str
    head: dict[str, Any]
    seconds: float
    stage: dict[str, Any] | None = None


def choices(facts: Facts) -> list[Choice]:
    """Members in the order in which they are taken; times are rough, from two cores of a server."""
    lead = 0 if facts.has_values else 80
    wide = 1.6 if lead else 1.0  # more features
    dense = facts.documents * facts.words * wide
    words = {"lead": lead}
    votes = 1e-9 * dense * facts.words * 20 / facts.cores
    found = []
    if facts.engines:
        bonsai = 4e-6 * facts.pairs * facts.words * wide / facts.cores * facts.fits
        decisive = 1 if facts.documents <= SMALL else 0.3  # of the time with all documents, see `OneVsRest`
        svm = 1.7e-8 * dense * facts.labels * decisive / facts.cores * facts.fits
        found.append(Choice("bonsai", {"class_path": "Bonsai", "init_args": words}, bonsai))
        found.append(Choice("svm", {"class_path": "OneVsRestSvm", "init_args": words}, svm))
    found.insert(1, Choice("nearest", {"class_path": "NearestNeighbours", "init_args": words}, votes))  # no library
    if not facts.has_values:
        speed = SPEED if facts.gpu else facts.cores
        tokens = min(facts.tokens, TOKENS)
        network = EPOCHS * facts.documents * tokens * (4e-5 + 7e-8 * min(facts.labels, 500)) / speed
        stage = {
            "name": "network",
            "epochs": EPOCHS,
            "trainable": ["backbone.*", "head.network.*"],
            "average_from": 3,
            "average_every": 50,
            "patience": 3,
            "restore_best": True,
        }
        found.append(
            Choice("network", {"class_path": "AttentionXML", "init_args": network_settings(facts)}, network, stage)
        )
    return found


def network_settings(facts: Facts) -> dict[str, Any]:
    return {"hidden": [256], "negatives": 500 if facts.labels > 1000 else None}


def picked(facts: Facts, budget: float) -> tuple[list[Choice], list[Choice]]:
    """Members within the budget, and those that are left out. One is always taken."""
    chosen: list[Choice] = []
    left: list[Choice] = []
    if not facts.engines:  # one alone
        networks_first = facts.documents >= ENOUGH
        ordered = sorted(choices(facts), key=lambda one: (one.stage is None) == networks_first)
        best = next((one for one in ordered if one.seconds <= budget), ordered[0])
        return [best], [one for one in ordered if one is not best]
    for choice in choices(facts):
        fits = sum(one.seconds for one in chosen) + choice.seconds <= budget
        # A network has no out-of-fold scores: it would leave the ranker with few validation documents.
        useful = choice.stage is None or facts.learns_on_val
        (chosen if fits and useful else left).append(choice)
    return (chosen, left) if chosen else (left[:1], left[1:])


def blend(facts: Facts, budget: float) -> dict[str, Any]:
    """Sections of the experiment: the candidates of members within the budget, ranked by boosted trees."""
    chosen, left = picked(facts, budget)
    explain(facts, budget, chosen, left)
    network = next((choice for choice in chosen if choice.stage), None)
    if not facts.engines:
        return alone(chosen[0])
    scores = "validation" if facts.learns_on_val else "out_of_fold"
    stages = [network.stage] if network and network.stage else []
    fitted = [f"{choice.name}.fit" for choice in chosen if not choice.stage]
    stages += [{"name": "members", "on_enter": fitted}, {"name": "ranker", "on_enter": ["fit_ranker"]}]
    members = {choice.name: choice.head for choice in chosen}
    head = {"members": members, "scores": scores, "folds": FOLDS}
    found: dict[str, Any] = {
        "model": {"backbone": encoder() if network else "Words", "head": {"class_path": "Blend", "init_args": head}},
        "stages": stages,
    }
    if network:
        found["model"]["optimizer"] = {"class_path": "Adam", "init_args": {"lr": 0.003}}
    if not facts.has_val and not facts.learns_on_val:
        found["data.val_fraction"] = round(min(max(LEAST_HELD_OUT, HELD_OUT / facts.documents), 0.1), 3)
    return found


def alone(choice: Choice) -> dict[str, Any]:
    """A single model, without the libraries that `Blend` needs."""
    if choice.stage is None:
        return {
            "model": {"backbone": "Words", "head": choice.head},
            "stages": [{"name": choice.name, "on_enter": ["fit"]}],
        }
    return {
        "model": {
            "backbone": encoder(),
            "head": choice.head,
            "optimizer": {"class_path": "Adam", "init_args": {"lr": 0.003}},
        },
        "stages": [{**choice.stage, "trainable": ["*"]}],
    }


def encoder() -> dict[str, Any]:
    return {
        "class_path": "BiLSTM",
        "init_args": {"embed_dim": 100, "hidden": 128, "dropout": 0.3, "pooling": "mean", "first": TOKENS},
    }


def explain(facts: Facts, budget: float, chosen: Sequence[Choice], left: Sequence[Choice]) -> None:
    """Say what was picked, and why."""
    kind = "features" if facts.has_values else "words"
    note(
        f"{facts.documents:,} training documents of {facts.tokens:.0f} {kind}, {facts.labels:,} labels, "
        f"{facts.cores} CPU cores, {'a GPU' if facts.gpu else 'no GPU'}"
    )
    note("members: " + ", ".join(f"{one.head['class_path']} (about {duration(one.seconds)})" for one in chosen))
    for one in left:
        over = sum(other.seconds for other in chosen) + one.seconds > budget
        reason = f"exceeds the budget of {duration(budget)}" if over else "too few validation documents to rank it by"
        if not facts.engines:
            reason = "it would need the ranker"
        note(f"left out: {one.head['class_path']} (about {duration(one.seconds)}), {reason}")
    if not facts.engines:
        note("linear models, and the ranker of their candidates, need: pip install 'xmc-zoo[linear]'")
    elif facts.learns_on_val:
        note(f"the ranker learns on the validation documents, which have {facts.val_labels:,} labels")
    else:
        note(f"the ranker learns on all training documents, scored by models of {FOLDS} folds")


def duration(seconds: float) -> str:
    """A time in its largest unit."""
    unit = next((unit for unit in ("h", "m") if seconds >= UNITS[unit]), "s")
    return f"{seconds / UNITS[unit]:.3g} {unit}" if seconds >= 1 else "1 s"


def parse_budget(text: Any) -> float:
    """Seconds of a text such as 90s, 10m or 2h."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh])", str(text).strip())
    if not found or not float(found[1]):
        raise UserError(f"--budget={text} is not a time: expected a number with s, m or h, such as 10m")
    return float(found[1]) * UNITS[found[2]]


def apply_recipe(
    experiment: dict[str, Any], options: Sequence[str], budget: str | None, folder: Path
) -> dict[str, Any]:
    """Replace `recipe` and `budget` of an experiment by sections; `options` are those of the command line."""
    name, stated = experiment.pop("recipe"), experiment.pop("budget", "30m")
    if name not in RECIPES:
        raise UserError(f"unknown recipe {name!r}: {' and '.join(RECIPES)} is what there is")
    seconds = parse_budget(budget or stated)
    given = [option for option in joined(options) if option.startswith(("--data=", "--data."))]
    if "data" not in experiment and not given:
        raise UserError("a recipe picks models for a corpus: name one with --data, such as --data Reuters")
    file = folder / "data.yaml"
    file.write_text(yaml.safe_dump({key: experiment[key] for key in experiment if key == "data"}), "utf8")
    parser = OneLine()
    parser.add_argument("--config", action="config")
    parser.add_subclass_arguments(TextDataModule, "data")
    data = parser.instantiate_classes(parser.parse_args([f"--config={file}", *given])).data
    found = blend(Facts.of(data), seconds)
    for key in [key for key in found if "." in key]:
        section, setting = key.split(".")
        experiment[section].setdefault("init_args", {})[setting] = found.pop(key)
    return experiment | found


def joined(options: Sequence[str]) -> list[str]:
    """Options with their values as `--name=value`."""
    found: list[str] = []
    for option in options:
        if option.startswith("--") or not found:
            found.append(option)
        elif "=" not in found[-1]:
            found[-1] += f"={option}"
    return found
