"""Commands import only what they need. Modules are counted, not seconds."""

import subprocess
import sys
from contextlib import suppress

import pytest

from zoo.commands.main import COMMANDS, OWN_PARSERS, TRAINING, main

LIBRARIES = {"pytorch_lightning", "torchmetrics", "transformers", "sklearn", "matplotlib", "pandas", "wandb"}
HEAVY = {"torch", "numpy", *LIBRARIES}
LOADED = """
import sys
from zoo.commands.main import main
try:
    main(sys.argv[2:])
except SystemExit as stop:
    assert not stop.code, stop.code
found = {name.split(".")[0] for name in sys.modules}
open(sys.argv[1], "w").write(" ".join(found))
"""


def modules_after(tmp_path, *args):
    """Top-level modules that a command has imported in a process of its own."""
    file = tmp_path / "modules.txt"
    done = subprocess.run([sys.executable, "-c", LOADED, str(file), *args], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(file.read_text().split())


@pytest.mark.parametrize("command", ["", "fit", "predict", "report", "compare", "data", "data check"])
def test_help_imports_nothing_heavy(tmp_path, command):
    assert not modules_after(tmp_path, *command.split(), "--help") & HEAVY


def test_list_and_version_import_nothing_heavy(tmp_path):
    assert not modules_after(tmp_path, "list") & HEAVY
    assert not modules_after(tmp_path, "--version") & HEAVY


def test_predict_needs_no_lightning(fit, tmp_path):
    best = fit() / "checkpoints" / "best.ckpt"
    (tmp_path / "in.txt").write_text("a document\n")
    loaded = modules_after(tmp_path, "predict", f"--ckpt={best}", f"--input={tmp_path / 'in.txt'}")
    assert not loaded & LIBRARIES
    assert "torch" in loaded


@pytest.mark.parametrize("command", ["", *TRAINING, *OWN_PARSERS, "data", *COMMANDS])
def test_help_reads_well_in_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with suppress(SystemExit):  # of a parser of its own
        main([*command.split(), "--help"])
    text = capsys.readouterr().out
    assert text.startswith("usage: zoo")
    assert "--help" in text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_described_and_an_example_given(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    main([*name.split(), "--help"])
    text = capsys.readouterr().out
    assert f"  zoo {name}" in text.split("examples:")[1]
    options = text.split("options:")[1].split("examples:")[0]
    rows = options.strip("\n").splitlines()
    for row, following in zip(rows, [*rows[1:], ""], strict=True):
        if row.startswith("  -"):
            assert row[26:].strip() or following[26:].strip(), row


def test_the_short_help_of_fit_names_options_that_exist(capsys, monkeypatch):
    from zoo.commands.experiment import SETTINGS
    from zoo.commands.training_help import EXPERIMENT, FIT

    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        main(["fit", "--help_all"])
    known = capsys.readouterr().out
    for option in (*EXPERIMENT, *FIT):
        name = option.split()[0].split(".SETTING")[0].split(".NAME")[0].removesuffix(".lr")
        assert f" {name}" in known or name.removeprefix("--") in SETTINGS, option


def test_an_unknown_command_names_a_close_one(fails):
    fails("predcit", names=["predcit", "predict"])
    fails("data", "chek", names=["data chek", "data check"])
    fails("--config", "x.yaml", "fit", names=["--config"])
