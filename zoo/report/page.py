"""The report as one html page that needs nothing from elsewhere."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from callbacks.pictures.canvas import svg
from callbacks.pictures.files import RunFiles
from zoo.compare import number
from zoo.report.examples import choice_rules, examples_html
from zoo.results import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = Path(__file__).with_name("page.css")
ABOUT = {  # title of a picture, and how to read it
    "label_distribution": (
        "Labels by frequency",
        "Training documents of each label, the most frequent first, on a logarithmic scale. The legend says which share"
        " of the labels, and of the pairs of a document and its label, each color has.",
    ),
    "label_correlation": (
        "Labels that come together",
        "How often labels share training documents, from the most frequent label (top left) to rare ones: blue pairs"
        " come together, orange ones keep apart.",
    ),
    "bins": (
        "Precision from frequent to rare labels",
        "Labels in parts of equal size, the most frequent in the first: the faster the bars fall, the less a model"
        " knows of rare labels.",
    ),
    "tail_f1": (
        "F1 of rare labels",
        "Labels with up to 20 training documents that the test documents have; above the diagonal, or with a higher"
        " second bar, the second run is better.",
    ),
    "curves": (
        "Training",
        "Loss on training documents by step (thin) and epoch, and metrics on validation documents; stages of training"
        " are shaded, those without epochs are dotted lines.",
    ),
    "norms": (
        "Weights of frequent and rare labels",
        "Length of each label's weights: where it grows with the number of documents, frequent labels score higher for"
        " that alone.",
    ),
    "tsne": (
        "Features of some labels",
        "Documents of a frequent, a medium and rare labels as the model sees them, spread out by t-SNE: groups that lie"
        " apart are told apart. Hollow points are generated.",
    ),
    "experts": (
        "How experts differ",
        "Mean divergence (KL) of a row's expert from a column's on the true labels of test documents; 0 is the same"
        " opinion.",
    ),
}
GROUPS = ("all", "many", "medium", "few", "rare", "oneshot")
SAMPLE = "the built-in sample: made-up documents, whose numbers say nothing about any corpus"
MB = 1024  # in a GB


@dataclass(frozen=True)
class Picture:
    kind: str  # of ABOUT
    name: str  # of its file, without an ending
    figure: Figure
    of: str = ""  # what it is of, where several pictures of a kind stand together


@dataclass(frozen=True)
class DataPart:
    """What runs on the same data have in common, and how they compare."""

    title: str
    pictures: list[Picture]


@dataclass(frozen=True)
class RunPart:
    run: Run
    title: str
    files: RunFiles
    pictures: list[Picture]


@dataclass(frozen=True)
class Page:
    title: str
    when: str
    table: str  # html
    data: list[DataPart]
    runs: list[RunPart] = field(default_factory=list)

    @property
    def pictures(self) -> list[Picture]:
        lists = [*(part.pictures for part in self.data), *(part.pictures for part in self.runs)]
        return [picture for pictures in lists for picture in pictures]

    def html(self) -> str:
        samples = [part.title for part in self.runs if part.run.facts.get("sample")]
        count = len(self.runs)
        subject = f"{count} runs" if count > 1 else "One run"
        where = " and ".join(part.title for part in self.data)
        style = STYLE.read_text("utf8") + choice_rules(most_choices(self.runs))
        return "\n".join(
            [
                "<!DOCTYPE html>",
                '<html lang="en">',
                "<head>",
                '<meta charset="utf-8">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                '<meta name="generator" content="xmc-zoo report">',
                '<link rel="icon" href="data:,">',  # or a browser asks a server for one
                f"<title>{escape(self.title)}</title>",
                f"<style>\n{style}\n</style>",
                "</head>",
                "<body>",
                f"<header><h1>{escape(self.title)}</h1>",
                f'<p class="faint">{subject} on {escape(where)}; page made {escape(self.when)}.</p>',
                sample_html(samples, count),
                f"{contents(self.runs)}</header>",
                "<main>",
                self.table,
                *(data_html(part) for part in self.data),
                *(run_html(part, f"run{place}") for place, part in enumerate(self.runs, 1)),
                "</main>",
                "</body>",
                "</html>",
                "",
            ]
        )


def most_choices(runs: Iterable[RunPart]) -> int:
    kept = [part.files.evidence for part in runs]
    return max((len(e.attention) for evidence in kept if evidence is not None for e in evidence.examples), default=0)


def sample_html(samples: Sequence[str], count: int) -> str:
    if not samples:
        return ""
    who = "All of this is" if len(samples) == count else f"{', '.join(samples)}: this is"
    return f'<p class="sample" role="note"><strong>{escape(who)} on {SAMPLE}.</strong></p>'


def contents(runs: Sequence[RunPart]) -> str:
    if len(runs) < 2:
        return ""
    links = [f'<li><a href="#run{place}">{escape(part.title)}</a></li>' for place, part in enumerate(runs, 1)]
    return f'<nav aria-label="Runs"><ul>{"".join(links)}</ul></nav>'


def data_html(part: DataPart) -> str:
    return f"<section>\n<h2>Data: {escape(part.title)}</h2>\n{pictures_html(part.pictures)}\n</section>"


def run_html(part: RunPart, anchor: str) -> str:
    return "\n".join(
        [
            f'<section id="{anchor}">',
            f"<h2>{escape(part.title)}</h2>",
            facts_html(part.run),
            metrics_html(part.run.metrics),
            pictures_html(part.pictures),
            examples_html(part.files, anchor),
            "</section>",
        ]
    )


def pictures_html(pictures: Sequence[Picture]) -> str:
    return "\n".join(['<div class="pictures">', *map(picture_html, pictures), "</div>"]) if pictures else ""


def picture_html(picture: Picture) -> str:
    title, caption = ABOUT[picture.kind]
    title = f"{title}: {picture.of}" if picture.of else title
    label = escape(f"{title}. {caption}")
    drawn = svg(picture.figure, picture.name).replace("<svg", f'<svg role="img" aria-label="{label}"', 1)
    return f"<figure>\n<h4>{escape(title)}</h4>\n{drawn}\n<figcaption>{escape(caption)}</figcaption>\n</figure>"


def facts_html(run: Run) -> str:
    """What is known of a run beside its metrics; what is not known is left out."""
    facts, memory = run.facts, run.value("memory")
    listed = run.config.get("stages")
    stages = [stage for stage in listed if isinstance(stage, dict)] if isinstance(listed, list) else []
    shown = {
        "data": run.data,
        "backbone": run.fact("backbone"),
        "head": run.fact("head"),
        "seed": facts.get("seed"),
        "training documents": facts.get("train_documents"),
        "labels": facts.get("labels"),
        "measured on": "validation documents" if run.is_validation else "test documents",
        "training time": duration(run.value("seconds")),
        "epochs": facts.get("epochs") or None,
        "peak memory": None if memory is None else f"{memory / MB:,.1f} GB" if memory >= MB else f"{memory:,.0f} MB",
        "parameters": facts.get("parameters") or None,
        "words with vectors": share(facts.get("vector_coverage")),
        "stages": " → ".join(f"{stage.get('name')} ({epochs(stage.get('epochs'))})" for stage in stages),
        "folder": str(run.folder),
    }
    rows = []
    for name, value in shown.items():
        if value not in (None, ""):
            wide = ' class="wide"' if name in ("stages", "folder") else ""
            rows.append(f"<div{wide}><dt>{name}</dt><dd>{escape(spelt(value))}</dd></div>")
    return "\n".join(["<dl>", *rows, "</dl>"])


def spelt(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def epochs(count: object) -> str:
    return "no epochs" if not count else "1 epoch" if count == 1 else f"{count} epochs"


def share(value: object) -> str | None:
    return f"{100 * value:.0f} %" if isinstance(value, float) else None


def duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def metrics_html(metrics: Mapping[str, float]) -> str:
    """Every metric, in % where it is a share: by rank, by group of labels, and all others."""
    cells = {name: number(name, value) for name, value in metrics.items()}
    ranked = [match for name in cells if (match := re.fullmatch(r"(P|nDCG|R|RP|PSP|PSnDCG)@(\d+)", name))]
    kinds, ks = (list(dict.fromkeys(match[group] for match in ranked)) for group in (1, 2))
    known = {name.partition("/")[2] for name in cells if name.startswith("labels/")}
    groups = [*(group for group in GROUPS if group in known), *sorted(known - {*GROUPS})]
    columns = {"labels": "labels", "P@5": "macroP@5", "R@5": "macroR@5", "F@5": "macroF@5"}
    grouped = {f"{column}/{group}" for column in columns.values() for group in groups}
    rest = [name for name in cells if name not in grouped and name not in {match[0] for match in ranked}]
    tables = [
        table_html("in %", [f"@{k}" for k in ks], {kind: [cells.get(f"{kind}@{k}", "") for k in ks] for kind in kinds}),
        table_html(
            "macro, in %",
            list(columns),
            {group: [cells.get(f"{column}/{group}", "") for column in columns.values()] for group in groups},
        ),
        table_html("others", [""], {name: [cells[name]] for name in rest}),
    ]
    return f'<details>\n<summary>All metrics</summary>\n<div class="tables">{"".join(tables)}</div>\n</details>'


def table_html(corner: str, columns: Sequence[str], rows: Mapping[str, Sequence[str]]) -> str:
    if not rows:
        return ""
    header = "".join(f'<th scope="col">{escape(column)}</th>' for column in (corner, *columns))
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>{"".join(f"<td>{escape(value)}</td>" for value in values)}</tr>'
        for name, values in rows.items()
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{header}</tr></thead><tbody>{body}</tbody></table></div>'
    )
