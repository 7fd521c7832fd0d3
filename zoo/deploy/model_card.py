"""The model card of a shared model, written from its run."""

from __future__ import annotations

import inspect
from typing import Any

import yaml

from heads.base import Head
from zoo.core.metrics import FREQUENCY_CLASSES, GROUP_TITLES, HEADLINE_METRICS
from zoo.core.run_folder import RunFolder
from zoo.core.version import __version__
from zoo.deploy.rendering import render
from zoo.training.ensemble_tagger import EnsembleTagger
from zoo.training.tagger import Tagger

TAGS = ["text-classification", "multi-label-classification", "extreme-multi-label", "long-tail", "pytorch"]
OF_LABELS = ("macroP@5", "macroR@5", "macroF@5")
OVERALL = (*HEADLINE_METRICS, "microF1@tuned", "macroF1@tuned")
SHARED_FACTS = (
    *("experiment", "data", "sample", "seed", "backbone", "head", "train_documents", "limit_train", "labels", "split"),
    *("seconds", "epochs", "parameters", "partial"),
)  # of `metrics.json`; the others may name files of this machine


def model_card(tagger: Tagger, run: RunFolder | None, name: str, licence: str | None) -> str:
    """Data, metrics by label frequency, use, limits and citations, as Markdown with metadata."""
    modules = [member.module for member in tagger.members] if isinstance(tagger, EnsembleTagger) else [tagger.module]
    space, vocabulary = tagger.module.space, tagger.vocabulary
    metrics = run.metrics if run else {}
    front: dict[str, Any] = {"library_name": "xmc-zoo", "pipeline_tag": "text-classification", "tags": TAGS}
    front |= {"license": licence} if licence else {}
    groups = [group for group in ("all", *FREQUENCY_CLASSES) if f"labels/{group}" in metrics]
    return render(
        "model_card.md.jinja",
        front=yaml.safe_dump(front, sort_keys=False, allow_unicode=True).strip(),
        name=name,
        title=name.partition("/")[2],
        models=" and ".join(f"{type(module.head).__name__} on {type(module.backbone).__name__}" for module in modules),
        experiment=run.experiment if run else None,
        corpus=run.corpus if run else None,
        split="validation" if run and run.is_validation else "test",
        partial=", ".join(run.partial) if run else "",
        documents=f"{space.num_documents:,}",
        labels=f"{space.num_labels:,}",
        rare=f"{sum(count <= 3 for count in space.counts):,}",
        added=space.added,
        overall={key: f"{100 * metrics[key]:.2f}" for key in OVERALL if key in metrics},
        of_labels=OF_LABELS,
        groups=[group_row(group, metrics) for group in groups],
        tokens=f"{vocabulary.max_length * vocabulary.windows:,}",
        features=vocabulary.has_values,
        threshold=f"{tagger.threshold:.3g}",
        calibrated=tagger.calibration is not None,
        papers=list(dict.fromkeys(paper for module in modules for paper in papers_of(module.head))),
        version=__version__,
    )


def group_row(group: str, metrics: dict[str, float]) -> list[str]:
    values = (metrics.get(f"{name}/{group}") for name in OF_LABELS)
    return [
        GROUP_TITLES[group],
        f"{metrics[f'labels/{group}']:,.0f}",
        *("" if value is None else f"{100 * value:.2f}" for value in values),
    ]


def papers_of(head: Head) -> list[str]:
    """References in the docstrings of a head and of those that it wraps."""
    kinds = dict.fromkeys(type(part) for part in head.modules() if isinstance(part, Head))
    paragraphs = [" ".join(part.split()) for kind in kinds for part in (inspect.getdoc(kind) or "").split("\n\n")]
    return [paragraph for paragraph in paragraphs if "https://" in paragraph and not paragraph.startswith("Args:")]


def shared_results(run: RunFolder) -> dict[str, Any]:
    """Content of `metrics.json` without what concerns only this machine."""
    facts = {key: run.facts[key] for key in SHARED_FACTS if key in run.facts}
    return facts | {"metrics": run.metrics}
