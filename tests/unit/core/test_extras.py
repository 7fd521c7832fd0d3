"""What is missing is named, with the command that installs it; the number of cores is known everywhere."""

import os
import sys

import pytest

from tests.support.errors import assert_message
from zoo.commands.main import main
from zoo.core import cores, extras
from zoo.core.errors import UserError


def without(monkeypatch, *names):
    found = extras.find_spec
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name in names else found(name))


@pytest.mark.parametrize(
    ("argv", "library", "extra"),
    [
        (["sweep", "--config=joint_reuters", "--grid", "data.batch_size=1,2"], "optuna", "sweep"),
        (["report", "runs"], "matplotlib", "report"),
    ],
)
def test_a_missing_extra_ends_in_one_line(argv, library, extra, monkeypatch, capsys):
    without(monkeypatch, library)
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert_message(capsys.readouterr().err.strip(), argv[0], library, f"pip install 'xmc-zoo[{extra}]'")


def test_help_needs_no_extra(monkeypatch, capsys):
    without(monkeypatch, "optuna", "matplotlib", "sklearn")
    main(["report", "--help"])
    assert "usage: zoo report" in capsys.readouterr().out


def test_a_library_that_cannot_be_imported():
    error = extras.missing_extra(ImportError(name="omikuji"), "linear")
    assert isinstance(error, UserError)
    assert str(error) == "the library omikuji is missing: pip install 'xmc-zoo[linear]'"


def test_cores_without_affinity(monkeypatch):
    assert cores.available_cores() >= 1
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert cores.available_cores() == 3


def test_windows_gets_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(SystemExit):
        main(["sweep", "--config=joint_reuters", "--grid", "data.batch_size=1,2"])
    assert "Windows" in capsys.readouterr().err
