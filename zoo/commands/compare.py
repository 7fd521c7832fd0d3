"""`zoo compare`: finished runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from zoo.analysis.comparison import Comparison, compare_runs
from zoo.analysis.sheets import to_csv, to_html, to_markdown, to_terminal
from zoo.analysis.tables import comparison_sheets, pair_records, pair_sheet, records
from zoo.commands.output import opened_output, split_names
from zoo.core.console import note
from zoo.core.errors import MAX_SEED, UserError, check_range
from zoo.core.metrics import averaged_over_all
from zoo.core.run_folder import LABELS, RunFolder
from zoo.core.run_search import read_runs

if TYPE_CHECKING:
    from zoo.analysis.pairs import Pair

Format = Literal["table", "markdown", "csv", "html"]
FORMATS: dict[str, Format] = {".md": "markdown", ".csv": "csv", ".html": "html"}
MAX_SAMPLES = 10**6  # of the bootstrap
TITLE = "Comparison of runs"


def compare(
    runs: list[str],
    *,
    by: str = "data,experiment",
    columns: str | None = None,
    format: Format | None = None,
    out: str | None = None,
    significance: bool = False,
    against: str | None = None,
    samples: int = 1000,
    seed: int = 0,
    published: bool = True,
    absent: Literal["skip", "zero"] = "skip",
    partial: bool = False,
) -> None:
    """Compare finished runs, in one table per corpus.

    Args:
        runs: run folders, or folders that contain them.
        by: keys to group runs by: data, experiment, head, backbone, seed, split, run, or settings such as
            model.head.dropout and stages.main.epochs. A row is the mean over the runs of a group.
        columns: columns to show: metrics such as P@1,PSP@5, and seconds, parameters and memory; `all` shows every one.
        format: table, markdown, csv or html (default: from the suffix of --out, or table).
        out: file to write instead of standard output.
        significance: test differences to a reference row with a paired bootstrap over test documents.
        against: name of the reference row, implies --significance (default: the first row).
        samples: number of bootstrap samples.
        seed: seed of the bootstrap.
        published: show results from papers below the runs on the same corpus.
        absent: what labels without test documents count in macro averages: `skip` leaves them out, `zero` counts them
            as 0, as some papers may do.
        partial: also compare runs that never trained, or trained or were tested on a part of the batches.

    Examples:
        zoo compare runs
        zoo compare runs --by head,seed --columns P@1,PSP@5
        zoo compare runs --significance --out table.md
    """
    kind = choose_format(format, out)
    check_range(1, MAX_SAMPLES, samples=samples)
    check_range(0, MAX_SEED, seed=seed)
    names = None if columns is None else split_names("columns", columns)
    every = ["all"] if kind == "csv" else None
    if absent == "zero" and (significance or against is not None):
        raise UserError("`absent=zero` changes the tables only: leave out `significance` and `against`")
    found = read_runs(runs, partial)
    if absent == "zero":
        found = [with_all_labels(run) for run in found]
    comparison = compare_runs(found, split_names("by", by), names or every, published)
    pairs: list[Pair] = []
    if significance or against is not None:
        from zoo.analysis.pairs import compare_pairs

        pairs = compare_pairs(comparison, against, samples, seed, None if names == ["all"] else names)
    with opened_output("-" if out is None else out) as file:
        file.write(render(kind, comparison, pairs))
    if out is not None:
        note(f"written to {out}")


def with_all_labels(run: RunFolder) -> RunFolder:
    """The run with macro averages over all labels, also those without test documents."""
    if run.labels is None:
        raise UserError(f"{run}: `absent=zero` needs {LABELS}, which this run does not have")
    return RunFolder(run.path, run.facts, averaged_over_all(run.metrics, run.label_documents))


def choose_format(format: Format | None, out: str | None) -> Format:
    if format is not None or out is None:
        return format or "table"
    if (suffix := Path(out).suffix.lower()) not in FORMATS:
        raise UserError(f"`out={out}`: the suffix is none of {', '.join(FORMATS)}; choose the format with `format`")
    return FORMATS[suffix]


def render(kind: Format, comparison: Comparison, pairs: list[Pair]) -> str:
    """Text of the tables; a csv file has room for one table only, which is that of the pairs if there are any."""
    if kind == "csv":
        return to_csv(list(pair_records(pairs) if pairs else records(comparison)))
    sheets = [*comparison_sheets(comparison), *map(pair_sheet, pairs)]
    if kind == "html":
        return to_html(sheets, TITLE)
    return to_markdown(sheets) if kind == "markdown" else to_terminal(sheets)
