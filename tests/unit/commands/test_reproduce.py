"""`zoo reproduce` with a stand-in for `zoo fit`, on tables of its own."""

import csv
import json
import sys

import pytest
import yaml

import zoo.analysis.comparison
import zoo.sweeps.children
import zoo.sweeps.paper_tables
from tests.support.errors import raises
from zoo.commands.reproduce import reproduce
from zoo.core.errors import UserError
from zoo.sweeps.paper_tables import find_table

STAND_IN = """
import json, os, sys

options = dict(word.lstrip("-").split("=", 1) for word in sys.argv[1:] if "=" in word)
config = open(sys.argv[sys.argv.index("--config") + 1]).read()
if "fail: true" in config and "mended" not in options:
    sys.exit("ValueError: no luck")
place = os.path.join(options["runs"], options["name"], "2026-01-01_00-00-00")
os.makedirs(place + "/checkpoints")
value = 0.5 + 0.01 * int(options["seed_everything"])
facts = {"experiment": options["name"], "data": "corpus", "argv": sys.argv[1:], "metrics": {"P@1": value, "P@3": 0.25}}
with open(place + "/metrics.json", "w") as file:
    json.dump(facts, file)
"""
TABLE = {
    "paper": "Demo",
    "corpus": "demo-4k",
    "columns": ["P@1", "P@3"],
    "common": {"data": "data.yaml", "model.head.dim": 8},
    "rows": {
        "Joint": {"extends": "joint.yaml"},
        "Two stages": {"extends": "joint.yaml", "start": {"row": "Joint", "after": "head", "stage": "transfer"}},
    },
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Shipped experiments with one table, `demo table2`, and published results."""
    papers = tmp_path / "shipped" / "papers" / "demo"
    papers.mkdir(parents=True)
    monkeypatch.setattr(zoo.sweeps.paper_tables, "shipped_folder", lambda: tmp_path / "shipped")
    monkeypatch.setattr(zoo.sweeps.children, "POLL_SECONDS", 0.02)
    with (tmp_path / "published.csv").open("w", newline="") as file:
        rows = [
            ["corpus", "method", "source", "train_documents", "note", "P@1", "P@3"],
            ["demo-4k", "Joint", "Demo, Tables 2 and 3", "", "", "79.04", ""],
            ["demo-4k", "SGM", "Demo, Table 2", "", "", "70.45", "60.37"],
            ["demo-4k", "Joint", "Demo, Table 4", "", "", "1.00", ""],
        ]
        csv.writer(file).writerows(rows)
    monkeypatch.setattr(zoo.analysis.comparison, "PUBLISHED", tmp_path / "published.csv")
    (tmp_path / "fit.py").write_text(STAND_IN)
    monkeypatch.chdir(tmp_path)
    return papers


@pytest.fixture
def run(folder, capsys):
    def run(*args: str, content=TABLE) -> str:
        (folder / "table2.yaml").write_text(f"# Demo, Table 2: methods.\n{yaml.safe_dump(content, sort_keys=False)}")
        reproduce(["demo", "table2", *args], [sys.executable, "-I", "-S", "fit.py"])
        return capsys.readouterr().out

    return run


def facts(folder, row, seed=0):
    (file,) = (folder.parents[2] / "runs" / "papers" / "demo_table2" / f"seed{seed}" / row).glob("*/metrics.json")
    return json.loads(file.read_text())


def test_rows_are_trained_once_and_shown_beside_printed_values(run, folder):
    lines = run("--seeds=2", "--data.root", "somewhere").splitlines()
    assert lines[0] == "Demo, Table 2: methods. (in %)"
    assert lines[1].split() == ["method", "P@1", "printed", "P@3", "printed"]
    assert lines[2].split() == ["Joint", "50.50", "±", "0.71", "79.04", "25.00", "±", "0.00"]
    assert lines[3].split() == ["Two", "stages", "50.50", "±", "0.71", "25.00", "±", "0.00"]
    assert lines[4].split() == ["SGM", "70.45", "60.37"]  # a method that the table does not train
    assert lines[5] == "printed: Demo on demo-4k; ours: corpus, with --data.root=somewhere"
    for seed in (0, 1):
        assert {f"--seed_everything={seed}", "--data.root=somewhere"} <= set(facts(folder, "Joint", seed)["argv"])
    run("--seeds=2", "--data.root", "somewhere")  # nothing is trained again, or the folder would exist
    assert "Two stages" in (folder.parents[2] / "runs/papers/demo_table2/table2.md").read_text()


def test_a_row_starts_from_the_checkpoint_of_another(run, folder):
    run("--only", "Two stages")
    argv = facts(folder, "Two_stages")["argv"]
    assert "--from_stage=transfer" in argv
    checkpoint = next(word for word in argv if word.startswith("--ckpt="))
    assert checkpoint.endswith("seed0/Joint/2026-01-01_00-00-00/checkpoints/head.ckpt")
    assert "--from_stage=transfer" not in facts(folder, "Joint")["argv"]


def test_experiments_extend_files_of_the_table(run, folder):
    commands = run("--dry_run", "--only=Joint").splitlines()
    assert len(commands) == 1
    assert commands[0].startswith("zoo fit --config runs/papers/demo_table2/experiments/Joint.yaml")
    written = yaml.safe_load((folder.parents[2] / "runs/papers/demo_table2/experiments/Joint.yaml").read_text())
    files = {"extends": str(folder / "joint.yaml"), "data": str(folder / "data.yaml")}
    assert written == files | {"model.head.dim": 8}
    assert not (folder.parents[2] / "runs/papers/demo_table2/seed0").exists()


def test_a_failed_row_does_not_stop_the_others(run, folder):
    rows = {"Bad": {"fail": True}, "After": {"start": {"row": "Bad", "after": "head", "stage": "x"}}, "Good": {}}
    with pytest.raises(SystemExit) as exit_:
        run(content=TABLE | {"rows": rows})
    assert exit_.value.code == 1
    assert facts(folder, "Good")["metrics"]["P@3"] == 0.25


def test_runs_with_other_settings_are_not_mixed(run):
    run("--only=Joint")
    with raises(UserError, "Joint", "--out"):
        run("--only=Joint", "--data.limit_train=5")
    run("--only=Joint", "--data.limit_train=5", "--out=elsewhere")


def test_tables_share_a_row_in_one_folder(run, folder):
    run("--only=Joint", "--out=both")
    row = {"model.head.dim": 8, "extends": "joint.yaml", "data": "data.yaml"}
    content = TABLE | {"rows": {"Joint": row}, "common": {}}
    (folder / "table3.yaml").write_text(f"# Demo, Table 3: methods.\n{yaml.safe_dump(content, sort_keys=False)}")
    reproduce(["demo", "table3", "--out=both"], ["false"])  # which would fail if it trained again
    assert {file.name for file in (folder.parents[2] / "both").glob("*.md")} == {"table2.md", "table3.md"}
    with raises(UserError, "Joint", "--out"):
        row["model.head.dim"] = 9
        (folder / "table3.yaml").write_text(yaml.safe_dump(content))
        reproduce(["demo", "table3", "--out=both"], ["false"])


@pytest.mark.parametrize(
    ("change", "texts"),
    [({"rows": {5: {}, 10: {}}, "x": "draws"}, ["draws", "P@3"]), ({}, ["Joint", "Two stages", "P@3"])],
)
def test_figures_are_drawn(folder, tmp_path, change, texts):
    pytest.importorskip("matplotlib")
    (folder / "figure3.yaml").write_text(f"# Demo, Figure 3: rows.\n{yaml.safe_dump(TABLE | change, sort_keys=False)}")
    reproduce(["demo", "figure3", "--seeds=2"], [sys.executable, "-I", "-S", "fit.py"])
    figure = (tmp_path / "runs/papers/demo_figure3/figure3.svg").read_text()
    assert all(f">{text}<" in figure for text in texts)


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"row": {}}, ["'row'", "rows"]),
        ({"rows": {"A": {"start": {"row": "B", "after": "x", "stage": "y"}}}}, ["'A'", "'B'"]),
        ({"rows": {"A": {"start": {"row": "B"}}}}, ["'A'", "`after`"]),
    ],
)
def test_invalid_tables_are_named(run, change, names):
    with raises(UserError, "table2.yaml", *names):
        run(content=TABLE | change)


def test_unknown_names_list_the_alternatives(run):
    with raises(UserError, "Jont", "Joint"):
        run("--only=Jont")
    with raises(UserError, "demo table3", "demo table2"):
        find_table("demo", "table3")
    with raises(UserError, "seed_everything"):
        run("--seed_everything=4")
