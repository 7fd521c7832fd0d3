"""`zoo rerank`: re-rank the candidate labels of a trained model in favor of rare labels."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import torch
import yaml
from rich.console import Console
from rich.table import Table
from torch import Tensor

from backbones import Features
from datamodules import Batch, Targets, TextDataModule
from heads import Ranking, Rerank, TransitionContext
from heads.tail.ranknet import Form, Scale
from heads.tail.reranker import MAX_EXPONENT
from zoo.commands.output import print_summary
from zoo.core.console import note, progress_bar, warn
from zoo.core.errors import MANY, MAX_SEED, WIDEST, UserError, check_range, first_line
from zoo.core.metrics import HEADLINE_METRICS, percent
from zoo.training.checkpoint import build, build_data, check_target, finish, read_checkpoint, save
from zoo.training.rank_split import rank_split
from zoo.training.ranking_metrics import RankingMetrics
from zoo.training.ranking_model import RankingModel
from zoo.training.stored import Stored, reading

T = TypeVar("T")
BLOCK = 2**10  # documents that are re-ranked at a time


def rerank(
    *,
    ckpt: str,
    out: str,
    form: Literal["propensity", "ranknet", "both"] = "propensity",
    allowed_loss: float = 0.005,
    gain: str = "PSP@5",
    keep: str = "P@1",
    exponent: float | None = None,
    scale: Scale = "log_probabilities",
    network: Form = "bottleneck",
    blocks: int = 1,
    learned_exponent: float | None = 0.5,
    candidates: int = 100,
    seed: int = 0,
    device: str | None = None,
    trust: list[str] | None = None,
) -> None:
    """Re-rank a trained model's candidates in favor of rare labels.

    The re-ranker is fitted on the validation documents of the model's corpus, and the printed metrics are on the same
    documents. With `ranknet` and `both`, one half of them trains the network and the other half is for the metrics.

    Args:
        ckpt: checkpoint of `zoo fit`.
        out: checkpoint to write; can be the same as --ckpt.
        form: `propensity` multiplies probabilities by a power of the inverse propensity, `ranknet` trains a network
            on the candidates' scores, `both` combines them.
        allowed_loss: how much the metric of --keep may drop when the exponent is chosen.
        gain: ranking metric to maximize, such as PSP@5 or nDCG@5.
        keep: ranking metric to preserve, such as P@1.
        exponent: exponent of the inverse propensity (default: chosen on the validation documents). With `propensity`, 1
            is the paper's parameter-free form.
        scale: scale of the scores that the network changes.
        network: `bottleneck` is W2 ReLU(W1 f), `full`, which needs probabilities and no learned exponent, is Wr f.
        blocks: number of stacked blocks of the network; 0 trains the learned exponent alone.
        learned_exponent: start of the exponent that is trained with the network; `null` for none.
        candidates: number of candidate labels per document.
        seed: seed of the split of the documents and of the network.
        device: device such as `cpu` or `cuda` (default: a GPU if available).
        trust: module outside the zoo with classes that the checkpoint may use, such as my_heads; can be repeated.

    Examples:
        zoo rerank --ckpt best.ckpt --out reranked.ckpt
        zoo rerank --ckpt best.ckpt --out reranked.ckpt --allowed_loss 0.01
        zoo rerank --ckpt best.ckpt --out reranked.ckpt --exponent 1
        zoo rerank --ckpt best.ckpt --out reranked.ckpt --form ranknet --blocks 0
    """
    start = time.perf_counter()
    check_range(0, MAX_EXPONENT, exponent=exponent)
    check_range(-MAX_EXPONENT, MAX_EXPONENT, learned_exponent=learned_exponent)
    check_range(0, MANY, blocks=blocks)
    check_range(0, 1, allowed_loss=allowed_loss)
    check_range(1, WIDEST, candidates=candidates)
    check_range(0, MAX_SEED, seed=seed)
    check_target(out)
    if form == "ranknet" and exponent is not None:
        raise UserError(f"`exponent={exponent}` needs `form=propensity` or `form=both`")
    powered = {"exponent": exponent, "gain": gain, "keep": keep, "allowed_loss": allowed_loss}
    trained = {"scale": scale, "network": network, "blocks": blocks, "learned_exponent": learned_exponent}
    if form == "propensity":
        trained = {"blocks": 0, "learned_exponent": None}
    elif not blocks and learned_exponent is None:
        raise UserError(f"`form={form}` has nothing to train with `blocks=0` and `learned_exponent=null`")
    settings = {"candidates": candidates, **trained, **(powered if form != "ranknet" else {})}
    module = on_device(wrapped(ckpt, settings, trust or ()), device)
    data = corpus_of(module, ckpt, trust or ())
    head, context = module.head, SingleProcess(seed=seed)
    assert isinstance(head, Rerank)
    ranking, targets = candidates_of(module, data)
    measured = torch.arange(len(targets))
    if form != "propensity":
        measured, used = torch.randperm(len(targets), generator=torch.Generator().manual_seed(seed)).tensor_split(2)
        head.learn(take(ranking, used), targets.take(used), context)
    base, truth = take(ranking, measured), targets.take(measured)
    if form != "ranknet" and exponent is None:
        head.choose(((take(base, rows), truth.take(rows)) for rows in slices(len(truth))), context)
    before, after = RankingMetrics(module.space), RankingMetrics(module.space)
    for rows in slices(len(truth)):
        first, own = take(base, rows), truth.take(rows)
        second = head.reranked(Ranking(first.scores.to(module.device), first.labels.to(module.device)), module.depth)
        before.update(first.scores[:, : module.depth], first.labels[:, : module.depth], own)
        after.update(second.scores.cpu(), second.labels.cpu(), own)
    module.threshold = after.best_threshold()
    save(module, out)
    show(before, after, f"{len(truth):,} validation documents")
    worse = [name for name in ("PSP@1", "PSP@5") if after.compute()[name] < before.compute()[name]]
    if form != "propensity" and worse:
        warn(
            f"{' and '.join(worse)} dropped: the network was trained on {len(targets) - len(truth):,} documents only; "
            "try --form=propensity"
        )
    print_summary(exponent=f"{head.power:g}", seconds=f"{time.perf_counter() - start:.1f}", checkpoint=out)


def wrapped(path: str, settings: dict[str, Any], trust: Sequence[str]) -> RankingModel:
    """Load a checkpoint and wrap its head in `Rerank`; the model is in evaluation mode."""
    content = read_checkpoint(path)
    with reading(path):
        stored = Stored.of(content["zoo"])
        if added := stored.space.added:
            raise UserError(
                f"it has {added:,} labels added by `zoo add-labels`, which its corpus does not have: re-rank the "
                "original checkpoint, then add the labels again"
            )
        base = build(stored.model, stored.space, trust)
        base.load_weights(content["state_dict"])
        if base.head.pending:
            raise UserError(f"it was saved before {base.head.pending[0]}: finish its training first")
        inner, names = stored.config["model"]["head"], "head."
        if isinstance(base.head, Rerank):
            note(f"{path} is re-ranked already: its re-ranker is replaced")
            inner, names = inner["init_args"]["inner"], "head.inner."
        head = {"class_path": "heads.Rerank", "init_args": {"inner": inner, **settings}}
        module = build(stored.model | {"head": head}, stored.space, trust)
        weights: dict[str, Any] = content["state_dict"]
        state = {n: v for n, v in weights.items() if not n.startswith("head.")}
        state |= {f"head.inner.{n.removeprefix(names)}": v for n, v in weights.items() if n.startswith(names)}
        module.load_weights(module.weights() | state)
    model = stored.config["model"] | {"head": head}
    config = stored.config | {"model": model, "stages": None}  # stages are for the inner head
    stored.config_text = yaml.safe_dump(config, sort_keys=False)
    if stored.calibration is not None:
        note(f"{path} is calibrated: re-ranked scores are not, calibrate them again")
        stored.calibration = None
    return finish(module, stored, content)


def on_device(module: RankingModel, device: str | None) -> RankingModel:
    place = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return module.to(place)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"no device {place!r}: {first_line(error)}") from error


def corpus_of(module: RankingModel, path: str, trust: Sequence[str]) -> TextDataModule:
    try:
        data = build_data(yaml.safe_load(module.config_text or "")["data"], trust)
    except Exception as error:  # a corpus class may raise anything
        raise UserError(f"{path}: its corpus is not available: {first_line(error)}") from error
    if data.space.names != module.space.names:
        raise UserError(f"{path}: the labels of {data.corpus_name} have changed since training")
    assert module.vocabulary
    if data.prepared.vocabulary.text != module.vocabulary.text:
        raise UserError(f"{path}: the vocabulary of {data.corpus_name} has changed since training")
    return data


@torch.no_grad()
def candidates_of(module: RankingModel, data: TextDataModule) -> tuple[Ranking, Targets]:
    """Candidates of the inner head for all validation documents, in corpus order, and their true labels."""
    assert isinstance(module.head, Rerank)
    head, depth = module.head, min(max(module.head.candidates, module.depth), module.space.num_labels)

    def rank(batch: Batch) -> Ranking:
        features: Features = module(batch.to(module.device))
        return head.inner.rank(features.float(), depth)

    return rank_split(data, "val", rank, depth), data.targets("val")


def take(ranking: Ranking, rows: Tensor) -> Ranking:
    return Ranking(ranking.scores[rows], ranking.labels[rows])


def slices(size: int) -> Iterator[Tensor]:
    for first in range(0, size, BLOCK):
        yield torch.arange(first, min(first + BLOCK, size))


def show(before: RankingMetrics, after: RankingMetrics, title: str) -> None:
    table = Table("in %", *HEADLINE_METRICS, title=title, title_justify="left")
    for name, metrics in (("before", before), ("after", after)):
        values = metrics.compute()
        table.add_row(name, *(percent(float(values[metric])) for metric in HEADLINE_METRICS))
    Console().print(table)


class SingleProcess(TransitionContext):
    """Context of stage transitions outside a trainer, with progress bars and without logging."""

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        with progress_bar(what) as begin:
            items = list(items)
            advance = begin(len(items))
            for item in items:
                yield item
                advance(1)
