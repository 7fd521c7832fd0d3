"""`zoo calibrate`: calibrated probabilities and thresholds for a trained model."""

from __future__ import annotations

import time
from collections.abc import Sequence

from rich.console import Console, Group
from rich.table import Table

from datamodules import Batch, Targets, TextDataModule
from heads import Ranking
from zoo.analysis.canvas import svg_file
from zoo.analysis.reliability_picture import diagram
from zoo.commands.blend_runs import blended, words_of
from zoo.commands.combined import measured
from zoo.commands.ensemble import mean_of
from zoo.commands.output import opened_output, print_summary
from zoo.commands.rerank import corpus_of
from zoo.core.console import note
from zoo.core.errors import MAX_SEED, WIDEST, UserError, check_range
from zoo.core.metrics import FREQUENCY_CLASSES, percent
from zoo.training.blend_tagger import BlendTagger
from zoo.training.calibration import KINDS, Calibration, Kind, Method
from zoo.training.checkpoint import check_target
from zoo.training.ensemble_tagger import EnsembleTagger
from zoo.training.fit_calibration import Report, calibrate_ranking
from zoo.training.fit_thresholds import Target
from zoo.training.rank_split import rank_split
from zoo.training.tagger import Tagger, load

TITLES: dict[Kind, str] = {
    "global": "one for all labels",
    "class": "one per frequency class",
    "label": "one per label, shrunk",
}


def calibrate(
    *,
    ckpt: str,
    out: str,
    method: Method = "platt",
    thresholds: Kind = "label",
    target: str = "macro-f1",
    candidates: int = 100,
    picture: str | None = None,
    seed: int = 0,
    device: str | None = None,
    trust: list[str] | None = None,
) -> None:
    """Fit calibrated probabilities and thresholds to the validation documents of a trained model.

    The checkpoint that is written gives calibrated probabilities as scores. Labels are ranked by them. The printed
    metrics are on the validation documents, by cross-validation; `zoo test` measures the checkpoint on others.

    Args:
        ckpt: checkpoint of `zoo fit`, `zoo ensemble` or `zoo blend`.
        out: checkpoint to write; can be the same as --ckpt.
        method: probability as a function of score and label count: `platt` is a sigmoid, `isotonic` any function that
            does not decrease with the score. All labels share its parameters.
        thresholds: what `--threshold auto` of `zoo predict` uses: `global`, one for each frequency `class`, or one for
            each `label`, shrunk towards that of its class.
        target: what thresholds are chosen for: `micro-f1`, `macro-f1`, `precision=P` for the most labels with at least
            this precision, or `labels=N` for a mean number of labels.
        candidates: number of best labels per document that are calibrated.
        picture: SVG file for a reliability diagram of the best five labels, before and after.
        seed: seed of cross-validation.
        device: device such as `cpu` or `cuda` (default: a GPU if available).
        trust: module outside the zoo with classes that the checkpoint may use, such as my_heads; can be repeated.

    Examples:
        zoo calibrate --ckpt best.ckpt --out new.ckpt
        zoo calibrate --ckpt best.ckpt --out new.ckpt --thresholds class
        zoo calibrate --ckpt best.ckpt --out new.ckpt --target precision=0.9
    """
    start, goal = time.perf_counter(), Target.parse(target)
    check_range(1, WIDEST, candidates=candidates)
    check_range(0, MAX_SEED, seed=seed)
    check_target(out)
    if picture is not None:
        check_target(picture)
    tagger = load(ckpt, device, trust or ())
    if tagger.calibration is not None:
        note(f"{ckpt} is calibrated already: its calibration is replaced")
        tagger.calibration = None
    space = tagger.module.space
    if space.added:
        raise UserError(
            f"{ckpt} has {space.added:,} labels added by `zoo add-labels`, which its corpus does not have: calibrate "
            "the original checkpoint, then add the labels again"
        )
    ranking, targets = ranked(tagger, min(candidates, space.num_scored), ckpt, trust or ())
    made, report = calibrate_ranking(ranking, targets, space, method, thresholds, goal, seed)
    tagger.calibration = made
    after = made.ranked(ranking, ranking.labels.shape[1])
    tagger.threshold = measured(space, targets, after, 0.5).best_threshold()
    tagger.save(out)
    if picture is not None and (figure := diagram(report.curves)) is not None:
        with opened_output(picture) as file:
            file.write(svg_file(figure, "reliability"))
    Console().print(tables(made, report, f"{len(targets):,} validation documents"))
    print_summary(seconds=f"{time.perf_counter() - start:.1f}", checkpoint=out)


def ranked(tagger: Tagger, depth: int, path: str, trust: Sequence[str]) -> tuple[Ranking, Targets]:
    """Best labels of the validation documents, with scores before calibration, and their true labels."""
    members = tagger.members if isinstance(tagger, EnsembleTagger) else [tagger]
    corpora = [corpus_of(member.module, path, trust) for member in members]
    width = min(tagger.head.candidates, len(tagger.names)) if isinstance(tagger, BlendTagger) else depth
    rankings = [rank_documents(m, data, width) for m, data in zip(members, corpora, strict=True)]
    targets = corpora[0].targets("val")
    if not isinstance(tagger, EnsembleTagger):
        return rankings[0], targets
    if isinstance(tagger, BlendTagger):
        note("the trees of the blend have learned from these documents: other documents are less certain")
        words = words_of(members, None, tagger.ranker.vocabulary.max_length, trust)
        if words.prepared.vocabulary.text != tagger.ranker.vocabulary.text:
            raise UserError(f"{path}: the vocabulary of {words.corpus_name} has changed since the blend was fitted")
        return blended(tagger.head, words, "val", rankings), targets
    return mean_of(rankings, depth), targets


def rank_documents(tagger: Tagger, data: TextDataModule, depth: int) -> Ranking:
    def rank(batch: Batch) -> Ranking:
        return tagger.module.rank(batch.to(tagger.module.device), depth)

    return rank_split(data, "val", rank, depth)


def tables(made: Calibration, report: Report, title: str) -> Group:
    """Format what calibration changes."""
    change = Table("in %", *(f"{name}@{k}" for name in ("ECE", "P") for k in report.errors))
    change.title, change.title_justify = f"{title}, by cross-validation", "left"
    columns = [*report.errors.values(), *report.precision.values()]
    for i, name in enumerate(("scores", f"probabilities ({made.method})")):
        change.add_row(name, *(percent(pair[i]) for pair in columns))
    reached = Table(f"thresholds for {made.target}", "micro-F1", "macro-F1", "precision", "labels per document")
    rows = {"one, on the scores": report.uncalibrated}
    rows |= {TITLES[kind] + " *" * (kind == made.kind): report.thresholds.reached[kind] for kind in KINDS}
    for name, counts in rows.items():
        values = [percent(value) for value in (counts.micro_f1, counts.macro_f1, counts.precision)]
        reached.add_row(name, *values, f"{counts.predicted.sum() / report.documents:.2f}")
    for table in (change, reached):
        for column in table.columns[1:]:
            column.justify = "right"
    by_class = zip(FREQUENCY_CLASSES, made.cuts["class"], strict=True)
    return Group(
        change,
        reached,
        f"* in use by --threshold auto; shrinkage {report.thresholds.strength:g}, "
        f"thresholds {made.cuts['global'][0]:.3f} for all labels, "
        + ", ".join(f"{cut:.3f} for {name}" for name, cut in by_class),
    )
