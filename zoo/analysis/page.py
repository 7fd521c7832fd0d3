"""The report as one self-contained HTML page."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zoo.analysis.canvas import svg
from zoo.analysis.evidence import Evidence
from zoo.analysis.examples import ExampleCard, cards_by_heading
from zoo.analysis.pictures import rounded_percent
from zoo.analysis.sheets import Sheet
from zoo.analysis.tables import number
from zoo.analysis.templating import render
from zoo.core.metrics import FEW, GROUP_TITLES, LABEL_METRICS, MACRO_K, RANKING_METRICS
from zoo.core.run_folder import RunFolder

if TYPE_CHECKING:
    from markupsafe import Markup
    from matplotlib.figure import Figure

CAPTIONS = {  # title and caption of a picture
    "label_distribution": (
        "Labels by frequency",
        "Training documents of each label, on a logarithmic scale. The legend gives the share of labels and of"
        " (document, label) pairs in each frequency class.",
    ),
    "label_correlation": (
        "Label co-occurrence",
        "Correlation of labels in training documents, from frequent labels (top left) to rare ones. Blue labels occur"
        " together, orange ones exclude each other.",
    ),
    "bins": (
        "Precision from frequent to rare labels",
        "Macro-averaged P@5 in bins with equal numbers of labels. The steeper the drop, the less the model has learned"
        " about rare labels.",
    ),
    "reliability": (
        "Reliability of scores",
        f"Share of correct labels among the best {MACRO_K} of each document, by their scores; larger points have more"
        " labels. Scores on the diagonal are calibrated probabilities; see zoo calibrate.",
    ),
    "tail_f1": (
        "F1 of rare labels",
        f"F1@{MACRO_K} of labels with up to {FEW} training documents that occur in the test documents. The second run"
        " is better above the diagonal, or where its bar is higher.",
    ),
    "curves": (
        "Training curves",
        "Training loss by step (thin lines) and epoch, and validation metrics. Training stages are shaded; those"
        " without epochs are dotted lines.",
    ),
    "norms": (
        "Weight norms of frequent and rare labels",
        "If norms grow with the number of training documents, the classifier is biased towards frequent labels.",
    ),
    "importances": (
        "What the ranker looks at",
        "Share of each feature of a (document, label) pair in the gain of all splits of the boosted trees.",
    ),
    "tsne": (
        "Features of selected labels",
        "t-SNE of the features of documents with a frequent, a medium and rare labels. The better the groups are"
        " separated, the better the model distinguishes the labels. Hollow points are generated features.",
    ),
    "experts": (
        "Disagreement of experts",
        "Mean KL divergence between the predictions of two experts on the true labels of test documents; 0 means that"
        " they agree.",
    ),
}


@dataclass(frozen=True)
class Picture:
    kind: str  # key of CAPTIONS
    name: str  # file name without suffix
    figure: Figure
    of: str = ""  # subject, if there are several pictures of a kind

    @property
    def title(self) -> str:
        title = CAPTIONS[self.kind][0]
        return f"{title}: {self.of}" if self.of else title

    @property
    def caption(self) -> str:
        return CAPTIONS[self.kind][1]

    def svg(self) -> Markup:
        """The picture as an element, whose texts matplotlib has escaped."""
        from markupsafe import Markup

        label = Markup('<svg role="img" aria-label="{}"').format(f"{self.title}. {self.caption}")
        return Markup(svg(self.figure, self.name).replace("<svg", label, 1))


@dataclass(frozen=True)
class DataSection:
    """Pictures of a corpus, and comparisons of the runs on it."""

    title: str
    pictures: list[Picture]


@dataclass(frozen=True)
class RunSection:
    """Facts, metrics, pictures and examples of a run."""

    run: RunFolder
    title: str
    evidence: Evidence | None
    pictures: list[Picture]

    @property
    def has_attention(self) -> bool:
        return self.evidence is not None and any(example.attention for example in self.evidence.examples)

    def example_groups(self) -> dict[str, list[ExampleCard]]:
        return cards_by_heading(self.run, self.evidence)

    def facts(self) -> dict[str, str]:
        """Facts about a run by name."""
        run, memory, coverage = self.run, self.run.value("memory"), self.run.facts.get("vector_coverage")
        found = {
            "data": run.data,
            "backbone": run.fact("backbone"),
            "head": run.fact("head"),
            "seed": run.facts.get("seed"),
            "training documents": run.facts.get("train_documents"),
            "labels": run.facts.get("labels"),
            "evaluated on": "validation documents" if run.is_validation else "test documents",
            "training time": duration(run.value("seconds")),
            "epochs": run.facts.get("epochs") or None,
            "peak memory": None if memory is None else f"{memory / 1024:,.1f} GB",
            "parameters": run.facts.get("parameters") or None,
            "words with vectors": None if coverage is None else rounded_percent(coverage),
            "stages": " → ".join(f"{stage.get('name')} ({epochs(stage.get('epochs'))})" for stage in run.stages),
            "folder": str(run.path),
        }
        return {
            name: f"{value:,}" if isinstance(value, int) else str(value)
            for name, value in found.items()
            if value not in (None, "")
        }

    def metric_tables(self) -> list[tuple[list[str], dict[str, list[str]]]]:
        """Header and rows of all metrics: ranking metrics, macro metrics by label group, and others."""
        cells = {name: number(name, value) for name, value in self.run.metrics.items()}
        pattern = rf"({'|'.join(RANKING_METRICS)})@(\d+)"
        ranked = [match for name in cells if (match := re.fullmatch(pattern, name))]
        kinds, ks = (list(dict.fromkeys(match[group] for match in ranked)) for group in (1, 2))
        known = {name.partition("/")[2] for name in cells if name.startswith("labels/")}
        groups = [*(group for group in reversed(GROUP_TITLES) if group in known), *sorted(known - GROUP_TITLES.keys())]
        columns = {"labels": "labels"} | {f"{name}@{MACRO_K}": f"macro{name}@{MACRO_K}" for name in LABEL_METRICS}
        shown = {match[0] for match in ranked} | {f"{name}/{group}" for name in columns.values() for group in groups}
        tables = [
            (["in %", *(f"@{k}" for k in ks)], {kind: [cells.get(f"{kind}@{k}", "") for k in ks] for kind in kinds}),
            (
                ["macro, in %", *columns],
                {group: [cells.get(f"{name}/{group}", "") for name in columns.values()] for group in groups},
            ),
            (["other metrics", ""], {name: [value] for name, value in cells.items() if name not in shown}),
        ]
        return [(header, rows) for header, rows in tables if rows]


@dataclass(frozen=True)
class Page:
    title: str
    when: str
    sheets: list[Sheet]
    data: list[DataSection]
    runs: list[RunSection] = field(default_factory=list)

    @property
    def pictures(self) -> list[Picture]:
        lists = [*(part.pictures for part in self.data), *(part.pictures for part in self.runs)]
        return [picture for pictures in lists for picture in pictures]

    @property
    def subject(self) -> str:
        size = f"{len(self.runs)} runs" if len(self.runs) > 1 else "One run"
        return f"{size} on {' and '.join(part.title for part in self.data)}"

    @property
    def on_sample(self) -> str:
        """Runs on the built-in sample, as the subject of a sentence; "" if there are none."""
        samples = [part.title for part in self.runs if part.run.facts.get("sample")]
        if not samples:
            return ""
        return "All results are" if len(samples) == len(self.runs) else f"The results of {', '.join(samples)} are"

    @property
    def most_choices(self) -> int:
        """Largest number of labels with attention in an example."""
        examples = [example for part in self.runs if part.evidence for example in part.evidence.examples]
        return max((len(example.attention) for example in examples), default=0)

    def html(self) -> str:
        return render("report.html", page=self)


def epochs(count: object) -> str:
    return "no epochs" if not count else "1 epoch" if count == 1 else f"{count} epochs"


def duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
