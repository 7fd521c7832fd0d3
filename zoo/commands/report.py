"""`zoo report`: finished runs as a page of tables, pictures and examples."""

from __future__ import annotations

from pathlib import Path

from zoo.analysis.build_page import make_page
from zoo.analysis.canvas import svg_file
from zoo.analysis.page import Page
from zoo.commands.output import opened_output
from zoo.core.console import note
from zoo.core.errors import UserError
from zoo.core.extras import require_extra
from zoo.core.run_search import read_runs


def report(runs: list[str], *, out: str = "report", partial: bool = False) -> None:
    """Write an HTML report of finished runs.

    The report has tables, pictures and examples. It is self-contained and can be viewed offline.

    Args:
        runs: run folders, or folders that contain them.
        out: folder for index.html and one SVG file per picture; other files in it are kept.
        partial: also report runs that never trained, or trained or were tested on a part of the batches.

    Examples:
        zoo report runs/lsfa_eurlex --out report
    """
    require_extra("report", "`zoo report`")
    found = read_runs(runs, partial)
    write_page(make_page(found), Path(out))
    note(f"report: {Path(out) / 'index.html'}")


def write_page(page: Page, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"`out={folder}` cannot be created: {error.strerror}") from error
    texts = {f"{picture.name}.svg": svg_file(picture.figure, picture.name) for picture in page.pictures}
    for name, text in (texts | {"index.html": page.html()}).items():
        with opened_output(str(folder / name)) as file:
            file.write(text)
