"""`python -m zoo rerank`: a trained checkpoint in, the same with its labels in a fairer order out."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any, Literal, TypeVar

import torch
import yaml
from jsonargparse import ArgumentParser
from rich.console import Console
from rich.table import Table
from torch import Tensor

from backbones import Features
from datamodules import Targets, TextDataModule
from datamodules.batch import LabelSpace
from datamodules.errors import UserError, first_line
from datamodules.progress import note, progress_bar
from datamodules.vocab import Vocabulary
from heads import Ranking, Rerank
from zoo.checkpoint import ORIGIN, build, check_target, read_checkpoint, save, with_settings
from zoo.metrics import RankingMetrics
from zoo.module import ZooModule

T = TypeVar("T")
SHOWN = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5")
STEP = 2**10  # documents that are ranked anew at a time


def rerank(
    ckpt: str,
    out: str,
    form: Literal["propensity", "ranknet", "both"] = "propensity",
    allowed_loss: float = 0.005,
    gain: str = "PSP@5",
    keep: str = "P@1",
    exponent: float | None = None,
    candidates: int = 100,
    seed: int = 0,
    device: str | None = None,
) -> None:
    """Put rare labels of a trained model forward, without training it again.

    Goes by the validation documents of the model's corpus. The table is of all of them, which the exponent was chosen
    on; with `ranknet` and `both` a half of them trains the network, and the table is of the other half.

    Args:
        ckpt: checkpoint of zoo fit.
        out: checkpoint to write; may be the same as `ckpt`.
        form: `propensity` multiplies probabilities by a power of the inverse propensity, `ranknet` trains a network
            of the candidates' scores, `both` does one after the other.
        allowed_loss: what `keep` may fall by when the power is chosen.
        gain: what the power is chosen for, P@k or PSP@k.
        keep: what must not fall, P@k or PSP@k.
        exponent: take this power, and choose none.
        candidates: so many of a document's best labels are ranked anew.
        seed: decides which half of the documents trains the network, and how it begins.
        device: `cpu`, `cuda`, ...; a GPU if there is one by default.
    """
    start = time.perf_counter()
    check_target(out)
    if form == "ranknet" and exponent is not None:
        raise UserError(f"--exponent={exponent} goes with --form=propensity or --form=both")
    powered = {"exponent": exponent, "gain": gain, "keep": keep, "allowed_loss": allowed_loss}
    settings = {"candidates": candidates, "blocks": int(form != "propensity"), **(powered if form != "ranknet" else {})}
    try:
        module = on_device(wrapped(ckpt, settings), device)
    except UserError as error:  # settings have the names of a run's options
        raise UserError(str(error).replace("--model.head.", "--")) from None
    data = corpus_of(module, ckpt)
    head, context = module.head, Alone(seed)
    assert isinstance(head, Rerank)
    ranking, targets = candidates_of(module, data)
    measured = torch.arange(len(targets))
    if form != "propensity":
        measured, trained = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed)).tensor_split(2)
        head.learn(part(ranking, trained), targets.take(trained), context)
    base, truth = part(ranking, measured), targets.take(measured)
    if form != "ranknet" and exponent is None:
        head.choose(((part(base, rows), truth.take(rows)) for rows in blocks(len(truth))), context)
    before, after = RankingMetrics(module.space), RankingMetrics(module.space)
    for rows in blocks(len(truth)):
        first, own = part(base, rows), truth.take(rows)
        second = head.reranked(part(first, device=module.device), module.depth)
        before.update(first.scores[:, : module.depth], first.labels[:, : module.depth], own)
        after.update(second.scores.cpu(), second.labels.cpu(), own)
    for metrics in (module.val_metrics, module.test_metrics):
        metrics.tuned_threshold.fill_(after.best_threshold())
    save(module, out)
    show(before, after, f"{len(truth):,} validation documents")
    worse = [name for name in ("PSP@1", "PSP@5") if after.compute()[name] < before.compute()[name]]
    if form != "propensity" and worse:
        note(
            f"the network makes {' and '.join(worse)} worse: {len(targets) - len(truth):,} documents taught it; "
            "try --form=propensity"
        )
    lines = {"exponent": f"{head.power:g}", "seconds": f"{time.perf_counter() - start:.1f}", "checkpoint": out}
    for name, value in lines.items():
        Console(highlight=False, markup=False, soft_wrap=True).print(f"{name}: {value}")


def wrapped(path: str, settings: dict[str, Any]) -> ZooModule:
    """The checkpoint's model with a `Rerank` around its head, in evaluation mode."""
    content = read_checkpoint(path)
    stored = content["zoo"]
    if not stored["config"] or not stored["tokenizer"]:
        raise UserError(f"{path} carries no configuration or vocabulary: train with `python -m zoo fit`")
    if added := stored["space"].get("added", 0):
        raise UserError(
            f"{path} learned {added:,} labels after its training, of which its corpus has no documents: re-rank the "
            "checkpoint that they were added to, and add them again"
        )
    config, space = yaml.safe_load(stored["config"]), LabelSpace(**stored["space"])
    model = deepcopy(config["model"])
    model["backbone"] = with_settings(model["backbone"], stored.get("backbone") or {})
    base = build(model, space)
    base.load_state_dict(content["state_dict"])
    if base.head.pending:
        raise UserError(f"{path} is from before {base.head.pending[0]}: finish its training first")
    inner, names = config["model"]["head"], "head."
    if isinstance(base.head, Rerank):
        note(f"{path} is ranked anew already: that is replaced")
        inner, names = inner["init_args"]["inner"], "head.inner."
    config["model"]["head"] = {"class_path": "heads.Rerank", "init_args": {"inner": inner, **settings}}
    config["stages"] = None  # they were of the head alone
    module = build(model | {"head": config["model"]["head"]}, space)
    state = {n: v for n, v in content["state_dict"].items() if not n.startswith("head.")}
    state |= {f"head.inner.{n.removeprefix(names)}": v for n, v in content["state_dict"].items() if n.startswith(names)}
    module.load_state_dict(module.state_dict() | state)
    module.config_text = yaml.safe_dump(config, sort_keys=False)
    module.origin = {key: content[key] for key in ORIGIN if key in content}
    module.vocabulary = Vocabulary.from_text(stored["tokenizer"], stored["max_length"])
    return module.eval()


def on_device(module: ZooModule, device: str | None) -> ZooModule:
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return module.to(place)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"no device {place!r}: {first_line(error)}") from error


def corpus_of(module: ZooModule, path: str) -> TextDataModule:
    """The corpus that a checkpoint was trained on."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_subclass_arguments(TextDataModule, "data")
    settings = yaml.safe_load(module.config_text or "")["data"]
    try:
        data = parser.instantiate_classes(parser.parse_object({"data": settings})).data
    except Exception as error:  # whatever its own settings may raise
        raise UserError(f"{path}: its corpus cannot be found here: {first_line(error)}") from error
    assert isinstance(data, TextDataModule)
    if data.space.names != module.space.names:
        raise UserError(f"{path} was trained on other labels than the corpus {data.corpus_name} has now")
    assert module.vocabulary
    if data.prepared.vocabulary.text != module.vocabulary.text:
        raise UserError(f"{path} was trained with another vocabulary than the corpus {data.corpus_name} has now")
    return data


@torch.no_grad()
def candidates_of(module: ZooModule, data: TextDataModule) -> tuple[Ranking, Targets]:
    """What the inner head finds for each validation document, in corpus order, and the labels that they have."""
    assert isinstance(module.head, Rerank)
    targets = data.targets("val")
    depth = min(max(module.head.candidates, module.depth), module.space.num_labels)
    scores, labels = torch.zeros(len(targets), depth), torch.zeros(len(targets), depth, dtype=torch.long)
    loader = data.pass_dataloader("val")
    with progress_bar("ranking validation documents") as begin:
        advance = begin(len(loader))
        for batch in loader:
            features: Features = module(batch.to(module.device))
            found = module.head.inner.rank(features.float(), depth)
            scores[batch.rows], labels[batch.rows] = found.scores.float().cpu(), found.labels.cpu()
            advance(1)
    return Ranking(scores, labels), targets


def part(ranking: Ranking, rows: Tensor | None = None, device: torch.device | None = None) -> Ranking:
    """Some documents, or all, on a device."""
    chosen = ranking if rows is None else Ranking(ranking.scores[rows], ranking.labels[rows])
    return Ranking(chosen.scores.to(device), chosen.labels.to(device))


def blocks(size: int) -> Iterator[Tensor]:
    for first in range(0, size, STEP):
        yield torch.arange(first, min(first + STEP, size))


def show(before: RankingMetrics, after: RankingMetrics, what: str) -> None:
    table = Table("in %", *SHOWN, title=what, title_justify="left")
    for name, metrics in (("before", before), ("after", after)):
        values = metrics.compute()
        table.add_row(name, *(f"{100 * float(values[shown]):.2f}" for shown in SHOWN))
    Console().print(table)


class Alone:
    """One process, without a trainer (`heads.ranknet.Process`)."""

    def __init__(self, seed: int) -> None:
        self.seed, self.first = seed, True

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        with progress_bar(what) as begin:
            items = list(items)
            advance = begin(len(items))
            for item in items:
                yield item
                advance(1)

    def sum(self, value: Tensor) -> Tensor:
        return value.clone()

    def log(self, values: Mapping[str, float]) -> None:
        """The table says it."""
