"""Every file in experiments/ runs on tiny data, through the real command line."""

from collections import defaultdict
from pathlib import Path

import pytest
import yaml

from zoo.commands.main import main

EXPERIMENTS = sorted(Path("experiments").glob("*.yaml"))
TINY = [
    "--data=Sample",
    "--data.num_documents=120",
    "--data.num_labels=20",
    "--data.words_per_document=30",
    "--trainer.limit_train_batches=2",
    "--trainer.enable_progress_bar=false",
    "--trainer.enable_model_summary=false",
    "--trainer.accelerator=cpu",
]
# What heads and backbones need on so little data, without a network.
SMALL = "{hidden_size: 8, num_hidden_layers: 6, num_attention_heads: 2, intermediate_size: 8}"
OWN = {
    "PvaeAugmentor": ["--model.head.head_count=10", "--model.head.pvae.epochs=2"],
    "AdaptiveClusters": ["--model.head.hidden=8"],
    "Blend": ["--model.head.ranker={trees: 20}"],
    "LightXML": ["--model.head.tree.clusters=4"],
    "PLT": ["--model.head.tree.clusters=4"],
    "Transformer": [
        "--model.backbone.name=bert",
        "--model.backbone.pretrained=false",
        f"--model.backbone.config={SMALL}",
    ],
}


def test_there_are_experiments():
    assert {"joint_eurlex", "joint_reuters", "xmlcnn_eurlex"} <= {path.stem for path in EXPERIMENTS}


def stages(path):
    given = yaml.safe_load(path.read_text()).get("stages", [])
    return yaml.safe_load((path.parent / given).read_text())["stages"] if isinstance(given, str) else given


def without_numbers(value):
    if isinstance(value, dict):
        found = {key: without_numbers(inner) for key, inner in value.items()}
        return {key: inner for key, inner in found.items() if inner not in (None, {}, [])}
    if isinstance(value, list):
        return [without_numbers(inner) for inner in value]
    return None if type(value) in (int, float) else value


def twins():
    """Experiments that differ in their corpus and in numbers only, the first of each to be trained."""
    groups = defaultdict(list)
    for path in EXPERIMENTS:
        experiment = yaml.safe_load(path.read_text())
        model, ways = experiment.get("model"), [{**stage, "name": ""} for stage in stages(path)]
        trained = [bool(stage.get("epochs")) for stage in ways]
        groups[str((without_numbers([model, ways, experiment.get("recipe")]), trained))].append(path)
    return list(groups.values())


def short(path):
    """Tiny data, and an epoch for each stage."""
    args, experiment = list(TINY), yaml.safe_load(path.read_text())
    if "recipe" in experiment:  # it picks the members of a blend
        return [*args, *OWN["Blend"]]
    model = experiment["model"]
    for part in (model["head"], model["backbone"]):
        args += OWN.get(part if isinstance(part, str) else part["class_path"], [])
    if isinstance(model["head"], dict) and (inner := (model["head"].get("init_args") or {}).get("inner")):
        args += [option.replace("--model.head.", "--model.head.inner.") for option in OWN.get(inner["class_path"], [])]
    for stage in stages(path):
        if stage.get("epochs"):
            args += [f"--stages.{stage['name']}.epochs=1"]
        if stage.get("average_from"):
            args += [f"--stages.{stage['name']}.average_{when}" for when in ("from=0", "every=1")]
    return args


@pytest.mark.experiment
@pytest.mark.parametrize("path", [first for first, *_ in twins()], ids=lambda path: path.stem)
def test_it_runs_all_its_stages(path, fit, read_metrics, monkeypatch, shared_cache):
    monkeypatch.setenv("ZOO_CACHE", str(shared_cache))
    assert 0 <= read_metrics(fit(*short(path), config=path))["metrics"]["P@1"] <= 1


@pytest.mark.parametrize("path", [path for _, *others in twins() for path in others], ids=lambda path: path.stem)
def test_the_settings_of_its_twin_are_valid_too(path, tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["fit", "--config", str(path), "--runs", str(tmp_path), *short(path), "--print_config"])
    assert left.value.code == 0
    assert yaml.safe_load(capsys.readouterr().out)["model"]["head"]["class_path"].startswith("heads.")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_it_says_openly_that_it_may_run_on_the_sample(path):
    data = yaml.safe_load(path.read_text())["data"]
    part = yaml.safe_load((path.parent / data).read_text()) if isinstance(data, str) else data
    assert part["class_path"] == "Sample" or part["init_args"]["on_missing"] == "sample"
