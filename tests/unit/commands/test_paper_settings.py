"""Experiments of papers against experiments/papers/settings.csv, the table of published settings."""

import csv
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
import yaml

from zoo.commands.experiment import resolve_config
from zoo.core.settings import flattened
from zoo.sweeps.paper_tables import read_table, table_files
from zoo.sweeps.reproduction import Reproduction

SETTINGS = list(csv.DictReader(Path("experiments/papers/settings.csv").read_text().splitlines()))
TABLES = {name: read_table(name, file) for name, file in table_files().items()}
EVERY_ROW = [(name, row) for name, table in TABLES.items() for row in table.rows]
# How rows are run, and what follows from their method and stages.
STRUCTURE = (
    "trainer.accelerator",
    "trainer.log_every_n_steps",
    "trainer.num_sanity_val_steps",
    "trainer.check_val_every_n_epoch",
    "trainer.callbacks.stage",
    "stages.*.on_enter",
    "stages.*.each_epoch",
    "stages.*.documents",
    "stages.*.trainable",
)
KEEPS_BEST = "stages.*.restore_best"


@pytest.fixture(scope="module")
def settings_of(tmp_path_factory):
    """Settings of a row by dotted keys."""

    def settings_of(name, row):
        out = tmp_path_factory.mktemp("row")
        job = Reproduction(TABLES[name], [row], 1, out, [], ["zoo", "fit"])
        job.write_experiments()
        (out / "resolved").mkdir()
        file = resolve_config(str(job.file_of(TABLES[name].rows[row])), out / "resolved", {})
        return flattened(yaml.safe_load(file.read_text()))

    return settings_of


def matches(line, name, row):
    paper, element = name.split()
    return line["paper"] == paper and fnmatchcase(element, line["table"]) and fnmatchcase(row, line["row"])


@pytest.mark.parametrize(("name", "row"), EVERY_ROW)
def test_settings_are_those_of_the_paper(name, row, settings_of):
    found = settings_of(name, row)
    lines = [line for line in SETTINGS if matches(line, name, row)]
    for key, value in found.items():
        own = [line for line in lines if fnmatchcase(key, line["key"])]
        for line in own:
            assert value == yaml.safe_load(line["value"].replace("ROW", row)), (key, line)
        if not any(fnmatchcase(key, f"{glob}*") for glob in (*STRUCTURE, KEEPS_BEST)):
            assert own, f"{key}={value} is neither stated nor marked as open"


@pytest.mark.parametrize("line", SETTINGS, ids=lambda line: f"{line['paper']}-{line['table']}-{line['key']}")
def test_each_published_setting_is_used(line, settings_of):
    rows = [(name, row) for name, row in EVERY_ROW if matches(line, name, row)]
    assert rows
    assert any(fnmatchcase(key, line["key"]) for name, row in rows for key in settings_of(name, row))


def test_open_settings_say_why():
    for line in SETTINGS:
        assert line["stated"] in ("yes", "no")
        assert line["where"] or line["reason"], line


def test_rows_have_the_names_of_the_published_ones():
    for name, table in TABLES.items():
        printed = table.printed()
        if name.split()[1].startswith("table"):
            assert printed, name
            assert set(table.rows) <= set(printed), name
