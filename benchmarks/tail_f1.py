"""F1 of tail labels, side by side by label, in several runs (HTTN, Figure 4).

    python benchmarks/tail_f1.py runs/httn_table/joint-reuters-0 runs/httn_table/httn-reuters-0 --tail_labels 28

Rows are the rarest labels of the first run that test documents have, from frequent to rare, and their mean. A label is
predicted where it scores at least 0.5.
"""

from __future__ import annotations

import argparse
import sys

from jobs import markdown

from zoo.analysis.pairs import read_tested
from zoo.analysis.tail import tail_table
from zoo.core.errors import UserError
from zoo.core.run_search import read_runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", help="run folders")
    parser.add_argument("--tail_labels", type=int, required=True, help="number of rarest labels (l_tail)")
    options = parser.parse_args()
    try:
        runs = read_runs(options.runs)
        tested = [one for run in runs if (one := read_tested(run)) is not None]
        if not tested:
            raise UserError("no run has predictions and labels of its test documents")
        table = tail_table(tested, options.tail_labels)
    except UserError as error:
        sys.exit(f"error: {error}")
    columns = ["label", "documents", *(one.run.experiment for one in tested)]
    rows = [
        [name, str(count), *(f"{100 * value:.1f}" for value in values)]
        for name, count, values in zip(table.names, table.documents, table.values.T, strict=True)
    ]
    mean = ["mean", "", *(f"{100 * value:.2f}" for value in table.values.mean(1))] if rows else []
    print(markdown(columns, [*rows, mean] if mean else rows))


if __name__ == "__main__":
    main()
