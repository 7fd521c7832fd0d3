"""The queue of benchmarks/papers.py, with a program that finishes at once instead of `zoo fit`."""

import json
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, os, pathlib, sys, time
options = dict(text.removeprefix("--").split("=", 1) for text in sys.argv[1:] if text.startswith("--") and "=" in text)
folder = pathlib.Path(options["runs"], options["name"], "2026-01-01_00-00-00")
folder.mkdir(parents=True, exist_ok=True)
if options["data.root"] == "broken":
    sys.exit("no such corpus")
if "SLOW" in os.environ:
    time.sleep(60)
(folder / "metrics.json").write_text(json.dumps({"metrics": {"P@1": 0.5}}))
"""
ENSEMBLE, SINGLE = "EHTTN (18 tail labels)", "HTTN (18 tail labels)"


@pytest.fixture
def papers(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import papers

    return papers


@pytest.fixture
def queue(papers, monkeypatch, tmp_path):
    """Trains a plan, and returns the names of the runs in the order in which they were trained, and the ledger."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    monkeypatch.setattr(papers, "PROGRAM", (sys.executable, str(program)))
    monkeypatch.setattr(papers, "PLAN", tmp_path / "plan.yaml")

    def train(entries, root="corpus", jobs=1, minutes=None):
        plan = {"corpora": {"small": {"options": [f"--data.root={root}"]}}, "groups": {}, "queue": entries}
        papers.PLAN.write_text(yaml.safe_dump(plan))
        out, trained = tmp_path / "runs", []
        ledger = papers.Ledger(out / "ledger.json")
        monkeypatch.setattr(papers, "say", lambda text: trained.append(text) if text.endswith("s") else None)
        papers.Queue(lambda: papers.planned(out), ledger).run(jobs, minutes)
        return trained, ledger, list(papers.planned(out))

    return train


def row(*rows, **others):
    return {"corpus": "small", "table": "httn table2", "rows": list(rows), **others}


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_row_waits_for_the_one_that_it_starts_from(queue, jobs):
    _, ledger, runs = queue([row(ENSEMBLE, SINGLE), row("Joint", seeds=[0, 1])], jobs=jobs)
    assert [ledger.state(run) for run in runs] == ["done"] * 4
    assert list(ledger.entries).index(runs[1].key) < list(ledger.entries).index(runs[0].key)
    assert f"--ckpt={runs[1].fit.folder.path}/checkpoints/head.ckpt" in runs[0].fit.command


def test_finished_runs_are_not_trained_again(queue):
    queue([row("Joint")])
    trained, ledger, runs = queue([row("Joint", names=["Control"]), row("BBN")])
    assert ["BBN" in text for text in trained] == [True]
    assert ledger.entries[runs[0].key]["parts"] == 1
    assert runs[0].name == "Control"


def test_a_failed_run_does_not_stop_the_queue_and_is_tried_again(queue, papers):
    _, ledger, runs = queue([row("Joint"), row("BBN")], root="broken")
    assert [ledger.state(run) for run in runs] == ["failed", "failed"]
    runs[0].job.file_of(runs[0].paper_table.rows["Joint"]).unlink()  # other options are refused
    _, ledger, runs = queue([row("Joint")])
    assert ledger.entries[runs[0].key]["parts"] == 2
    assert json.loads(ledger.file.read_text())[runs[0].key]["outcome"] == "finished"
    assert "1 done" in ledger.table(runs)


def test_a_run_that_the_last_minute_stops_is_resumed(queue, monkeypatch):
    monkeypatch.setenv("SLOW", "")
    _, ledger, runs = queue([row("Joint"), row("BBN")], minutes=0.01)
    assert ledger.entries[runs[0].key]["outcome"] == "stopped"
    assert ledger.state(runs[1]) == "left"
    assert "--ckpt_path=last" in runs[0].fit.command
    monkeypatch.delenv("SLOW")
    _, ledger, runs = queue([row("Joint"), row("BBN")])
    assert [ledger.state(run) for run in runs] == ["done", "done"]
    assert [ledger.entries[run.key]["parts"] for run in runs] == [2, 1]


def test_runs_and_claims_name_rows_that_exist(papers, tmp_path):
    runs = list(papers.planned(tmp_path))
    assert all(run.row in run.paper_table.rows for run in runs)
    assert len({run.key for run in runs}) == len(runs)
    shown = {(run.corpus, f"{run.table} / {run.name}") for run in runs}
    for claims in yaml.safe_load((ROOT / "benchmarks" / "claims.yaml").read_text()).values():
        for claim in claims:
            assert {"claim", "paper", "metrics"} <= claim.keys()
            assert "rows" in claim or "untested" in claim
            assert {(corpus, name) for corpus, *pair in claim.get("rows", []) for name in pair} <= shown
