"""Messages and progress bars: silent in a program, shown at the command line."""

import logging
import subprocess
import sys

import pytest
from rich.table import Table

from zoo.core.console import LOGGER, note, progress_bar, terminal_output, warn, warn_panel

PROGRAM = """
import logging
from zoo.core.console import note, print_result, progress_bar, warn, warn_panel
{setting}
note("a note")
warn("a warning")
warn_panel("a title", "a panel")
print_result("a result")
with progress_bar("a bar") as bar:
    bar(1)(1)
"""


@pytest.fixture
def _terminal():
    """Overrides the fixture of all tests: here each test chooses its output."""


def seen(setting: str = "") -> str:
    done = subprocess.run([sys.executable, "-c", PROGRAM.format(setting=setting)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_programs_see_warnings_unless_they_configure_logging():
    assert seen() == "a warning\na title: a panel\n"
    assert seen('logging.getLogger("zoo").setLevel(logging.ERROR)') == ""
    shown = seen("logging.basicConfig(level=logging.INFO)")
    assert "INFO:zoo:a note\n" in shown
    assert "a result\n" in shown
    assert "a bar" in shown


def test_command_line_shows_all_messages(capsys):
    table = Table("of a table")
    table.add_row("a cell")
    with terminal_output(), terminal_output():
        note("[a] note")
        warn("a warning")
        warn_panel("a title", "[a] panel")
        note("a plain line", rendered=table)
        with progress_bar("a bar") as bar:
            bar(1)(1)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("· [a] note\n· a warning\n╭")
    for part in ("a title", "[a] panel", "of a table", "a cell", "a bar"):
        assert shown.err.count(part) == 1
    assert "a plain line" not in shown.err
    note("after it")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR])
def test_command_line_keeps_the_level_of_the_logger(capsys, level):
    LOGGER.setLevel(level)
    try:
        with terminal_output():
            note("a note")
            warn("a warning")
    finally:
        LOGGER.setLevel(logging.NOTSET)
    assert capsys.readouterr().err == ("· a warning\n" if level == logging.WARNING else "")


def test_other_ranks_are_silent(capsys, monkeypatch):
    monkeypatch.setenv("LOCAL_RANK", "1")
    with terminal_output(), progress_bar("a bar") as bar:
        warn("a warning")
        bar(1)(1)
    assert capsys.readouterr().err == ""
