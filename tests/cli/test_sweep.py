"""Sweeps through the command line: `zoo fit` accepts those in experiments/sweeps, and a tiny one runs."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from zoo.commands.main import main
from zoo.commands.sweep_options import read_plan
from zoo.sweeps.axes import first_setting, options_of

FOLDER = Path("experiments", "sweeps")
OF_WANDB = sorted(FOLDER.glob("wandb_*.yaml"))
OURS = sorted(set(FOLDER.glob("*.yaml")) - set(OF_WANDB))
TINY = [
    "--data=Sample",
    "--data.num_documents=120",
    "--data.num_labels=20",
    "--data.words_per_document=30",
    "--wandb.mode=disabled",
    "--trainer.enable_model_summary=false",
    "--trainer.accelerator=cpu",
]


def printed(capsys, *options):
    """The configuration that `zoo fit` makes of these options."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(["fit", *options, "--print_config"])
    assert not stop.value.code
    return yaml.safe_load(capsys.readouterr().out)


def test_there_are_sweeps_for_the_figures_of_papers():
    assert {"httn_draws", "lsfa_head_count", "lsfa_samples", "taug_copies", "taug_fraction"} <= {p.stem for p in OURS}


@pytest.mark.parametrize("path", OURS, ids=lambda path: path.stem)
def test_fit_accepts_the_first_configuration(path, capsys):
    plan = read_plan(["--sweep", str(path)])
    setting = first_setting(plan.axes)
    config = printed(capsys, *plan.fit_options, *options_of(plan.axes, setting))
    if path.stem == "taug_copies":
        assert config["trainer"]["callbacks"][0]["init_args"]["copies"] == 0
    if path.stem == "httn_draws":
        assert config["model"]["head"]["init_args"]["draws"] == 5


@pytest.mark.parametrize("path", OF_WANDB, ids=lambda path: path.stem)
def test_fit_accepts_the_command_of_a_wandb_agent(path, capsys):
    sweep = yaml.safe_load(path.read_text())
    args = [f"--{key}={kind['min']}" for key, kind in sweep["parameters"].items()]  # as its agents write them
    words = [word for part in sweep["command"] for word in (args if part == "${args}" else [part])]
    assert words[:5] == ["${env}", "python", "-m", "zoo", "fit"]
    config = printed(capsys, *words[5:])
    assert config["model"]["head"]["init_args"]["samples"] == 1
    assert config["model"]["optimizer"]["init_args"]["lr"] == 3e-4
    assert sweep["metric"] == {"name": config["best"]["monitor"], "goal": "maximize"}


@pytest.mark.experiment
def test_a_sweep_of_two_configurations_that_set_two_keys_each(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    key = "model.head.fraction+trainer.callbacks.fraction"
    args = ["--sweep=experiments/sweeps/taug_fraction.yaml", "--grid", f"{key}=0.3,0.5", "--seeds=1", *TINY]
    capsys.readouterr()
    main(["sweep", *args, f"--out={tmp_path}/sweep"])
    shown = capsys.readouterr()
    configs = [yaml.safe_load(file.read_text()) for file in tmp_path.glob("sweep/runs/seed0/*/*/config.yaml")]
    both = {
        (c["model"]["head"]["init_args"]["fraction"], c["trainer"]["callbacks"][0]["init_args"]["fraction"])
        for c in configs
    }
    assert both == {(0.3, 0.3), (0.5, 0.5)}
    assert "model.head.fraction" in shown.out
    assert "best val/nDCG@5" in shown.out
    assert shown.out.splitlines()[-1].startswith("zoo fit --config experiments/taug_bonsai_eurlex.yaml")
    assert shown.err.count(": val/nDCG@5") == 2
    rows = (tmp_path / "sweep" / "trials.csv").read_text().splitlines()
    assert rows[0] == f"number,state,{key},value"
    assert [row.split(",")[:3] for row in rows[1:]] == [["0", "COMPLETE", "0.3"], ["1", "COMPLETE", "0.5"]]
