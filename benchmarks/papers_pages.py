"""Tables and figures of docs/results/papers from the finished runs of papers.py.

    python benchmarks/papers_pages.py --out runs/papers

Pages are written by hand, except between `<!-- begin NAME -->` and `<!-- end -->`: `rows CORPUS` is a table of all
finished runs on a corpus, `claims PAPER` tests the claims of claims.yaml with a paired bootstrap over test documents,
and `queue` is what is not finished. The learning curves of networks are drawn to docs/images/papers_CORPUS.svg.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import yaml
from jobs import markdown
from papers import Ledger, PaperRun, planned

from zoo.analysis.canvas import COLORS, INK, canvas, grid, style, svg_file
from zoo.analysis.comparison import ComparedRuns, Comparison, DataTable
from zoo.analysis.curves import series
from zoo.analysis.pairs import compare_pairs
from zoo.analysis.significance import LEVEL, Difference
from zoo.analysis.tables import written

PAGES = Path(__file__).parents[1] / "docs" / "results" / "papers"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
CLAIMS = Path(__file__).with_name("claims.yaml")
BLOCK = re.compile(r"(<!-- begin (\w+) ?(\S*) -->\n).*?(<!-- end -->)", re.DOTALL)
COLUMNS = ("P@1", "P@3", "P@5", "nDCG@5", "PSP@1", "PSP@3", "PSP@5", "macroF@5/few", "microF1@0.5")
METRIC = "val/nDCG@5"  # of the learning curves
LINEAR = "SVM"  # drawn beside them
SAMPLES = 2000  # of the bootstrap
Key = tuple[str, str, str]  # corpus, table, name


class Results:
    """Rows of finished runs, and what is not finished."""

    def __init__(self, out: Path) -> None:
        self.ledger, self.rows, self.plan = Ledger(out / "ledger.json"), dict[Key, ComparedRuns](), list(planned(out))
        self.deviations: dict[Key, str] = {}
        for run in self.plan:
            key = run.corpus, run.table, run.name
            if (folder := run.folder) is not None:
                self.rows.setdefault(key, ComparedRuns({"row": f"{run.table} / {run.name}"})).runs.append(folder)
                self.deviations[key] = run.deviations

    def corpus(self, name: str) -> str:
        """Table of all rows on a corpus, best P@1 first."""
        rows = {key: row for key, row in self.rows.items() if key[0] == name}
        if not rows:
            return "No run is finished."
        columns = [column for column in COLUMNS if any(row.value(column) for row in rows.values())]
        best = {column: max(value.mean for row in rows.values() if (value := row.value(column))) for column in columns}
        lines = []
        for key, row in sorted(rows.items(), key=lambda item: -(item[1].value("P@1") or (0,))[0]):
            cells = []
            for column in columns:
                value = row.value(column)
                text = "" if value is None else written(column, value)
                cells.append(f"**{text}**" if value and value.mean == best[column] else text)
            seconds = sum(self.ledger.entries[run.key]["cpu_seconds"] for run in self.plan if self.is_run(run, key))
            seeds = str(len(row.runs))
            lines.append([key[2], paper_of(key[1]), *cells, seeds, f"{seconds / len(row.runs):,.0f}"])
        header = ["row", "settings of", *columns, "seeds", "CPU seconds"]
        notes = [f"- {key[2]}: {text}." for key, text in self.deviations.items() if text and key[0] == name]
        return "\n".join([markdown(header, lines), *([""] if notes else []), *notes])

    def is_run(self, run: PaperRun, key: Key) -> bool:
        return (run.corpus, run.table, run.name) == key and run.key in self.ledger.entries

    def claims(self, paper: str) -> str:
        """A section for each claim of a paper, tested on each corpus that has both rows."""
        sections = []
        for number, claim in enumerate(yaml.safe_load(CLAIMS.read_text("utf8"))[paper], start=1):
            lines = []
            for corpus, pair, one, seeds in self.tests(claim):
                interval = f"{100 * one.difference:+.2f} ({100 * one.low:+.2f} to {100 * one.high:+.2f})"
                values = [f"{100 * value:.2f}" for value in (one.value, one.reference)]
                lines.append([corpus, pair, one.metric, *values, interval, seeds, judge(one, claim.get("sign", 1))])
            header = ["corpus", "rows", "metric", "first", "second", "difference", "seeds", "verdict"]
            tested = markdown(header, lines) if lines else f"**Not tested:** {claim.get('untested', 'in the queue')}."
            sections.append(f"### {number}. {claim['claim']}\n\nPaper: {claim['paper']}.\n\n{tested}")
        return "\n\n".join(sections)

    def tests(self, claim: dict[str, Any]) -> Iterable[tuple[str, str, Difference, str]]:
        """Corpus, names, difference and numbers of seeds, for each pair of finished rows."""
        for corpus, row, against in claim.get("rows", []):
            pair = [self.rows.get((corpus, *split_row(name))) for name in (row, against)]
            if pair[0] is None or pair[1] is None:
                continue
            part = DataTable(corpus, list(COLUMNS), [pair[1], pair[0]], [])
            (tested,) = compare_pairs(Comparison(["row"], [part]), None, SAMPLES, 0, claim["metrics"])
            order = {metric: place for place, metric in enumerate(claim["metrics"])}
            for one in sorted(tested.differences, key=lambda one: order[one.metric]):
                names = " against ".join(split_row(name)[1] for name in (row, against))
                yield corpus, names, one, f"{len(pair[0].runs)}, {len(pair[1].runs)}"

    def queue(self) -> str:
        """Runs that are not finished."""
        lines: dict[tuple[str, ...], list[str]] = {}
        for run in self.plan:
            if not run.fit.finished:
                hours = f"{run.hours:g}" if run.hours else "minutes"
                lines.setdefault((run.corpus, run.name, paper_of(run.table), hours), []).append(str(run.seed))
        header = ["corpus", "row", "settings of", "hours of an idle core", "seeds"]
        return markdown(header, [[*key, ", ".join(seeds)] for key, seeds in lines.items()])

    def curves(self, corpus: str) -> str | None:
        """Learning curves of the networks on a corpus, and a line for the SVM; None without networks."""
        drawn = {key[2]: curve(row) for key, row in self.rows.items() if key[0] == corpus}
        svm = drawn.get(LINEAR)
        networks = {name: points for name, points in drawn.items() if len(points) > 1}
        if not networks:
            return None
        with style():
            figure, (axis,) = canvas()
            for (name, points), color in zip(networks.items(), COLORS, strict=False):
                axis.plot(*points.T, color=color, linewidth=1.4, marker="o", markersize=2.5, label=name)
            if svm is not None:
                axis.axhline(svm[-1, 1], color=INK, linewidth=0.8, linestyle="--", label=LINEAR)
            axis.set_xlabel("step")
            axis.set_ylabel("nDCG@5 of validation documents, %")
            grid(axis)
            figure.legend(loc="outside lower center", ncols=2)
            return svg_file(figure, f"papers_{corpus}")


def curve(row: ComparedRuns) -> Any:
    """Steps and validation results in % of the first run."""
    points = series(row.runs[0].log_rows, METRIC)
    points[:, 1] *= 100
    return points


def judge(one: Difference, sign: int) -> str:
    """Whether a difference has the claimed sign (0: no difference)."""
    if sign == 0:
        return "not confirmed" if one.p < LEVEL else "confirmed: no difference"
    if not one.p < LEVEL:
        return "not confirmed"
    return "confirmed" if one.difference * sign > 0 else "reversed"


def split_row(name: str) -> tuple[str, str]:
    """`httn table2 / Joint` as table and row."""
    table, _, row = name.partition(" / ")
    return table, row


def paper_of(table: str) -> str:
    paper, element = table.split()
    number = re.sub(r"\D.*", "", element.removeprefix("table").removeprefix("figure"))
    title = {"httn": "HTTN", "lsfa": "LSFA", "mexml": "ME-XML", "lightattention": "LightAttention"}
    return f"{title.get(paper, 'RankNet and Taug')}, {'Table' if element.startswith('table') else 'Figure'} {number}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/papers"), help="folder of the runs")
    results = Results(parser.parse_args().out)
    makers: dict[str, Callable[[str], str]] = {
        "rows": results.corpus,
        "claims": results.claims,
        "queue": lambda _: results.queue(),
    }
    for page in sorted(PAGES.glob("*.md")):
        text = page.read_text("utf8")
        page.write_text(BLOCK.sub(lambda m: f"{m[1]}{makers[m[2]](m[3])}\n{m[4]}", text), "utf8")
    for corpus in dict.fromkeys(key[0] for key in results.rows):
        if picture := results.curves(corpus):
            (IMAGES / f"papers_{corpus}.svg").write_text(picture, "utf8")


if __name__ == "__main__":
    main()
