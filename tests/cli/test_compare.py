"""`zoo compare` through the command line, on runs of `zoo fit`."""

import csv
import io
import json
import subprocess
import sys

import pytest

from zoo.analysis.pairs import read_tested
from zoo.commands.main import main
from zoo.commands.verbs import as_one_list
from zoo.core.run_folder import RunFolder
from zoo.core.run_search import read_runs

HEAVY = {"torch", "pytorch_lightning", "callbacks", "heads", "datamodules.base", "datamodules.batch"}


@pytest.fixture
def shown(capsys):
    def run(*args: str) -> str:
        capsys.readouterr()
        main(["compare", *map(str, args)])
        return capsys.readouterr().out

    return run


@pytest.fixture
def written(tmp_path):
    """Write a run folder without training anything."""

    def write(place: str, **facts):
        folder = tmp_path / place
        folder.mkdir(parents=True)
        known = {"experiment": "joint", "data": "reuters", "seed": 0, "head": "Linear", "limit_train": None}
        (folder / "metrics.json").write_text(json.dumps(known | facts | {"metrics": {"P@1": 0.5}}))
        return folder

    return write


def computed(run: RunFolder) -> dict[str, float]:
    tested = read_tested(run)
    assert tested is not None
    return dict(zip(tested.measurement.names, tested.measurement.point().tolist(), strict=True))


def test_metrics_can_be_recomputed_from_the_stored_predictions(fit, shown):
    one, other = fit(), fit("--seed_everything=1", "--model.backbone=CNN", "--trainer.max_epochs=6")
    for run in read_runs([one, other]):
        found = computed(run)
        assert found == pytest.approx({name: run.metrics[name] for name in found}, abs=1e-6)
        for name, value in run.metrics.items():  # nothing is left out but sizes, bins, and groups without labels
            group = name.partition("/")[2]
            if not name.startswith("labels/") and "/bin" not in name and name != "threshold":
                assert name in found or run.metrics[f"labels/{group}"] == value == 0
    text = shown(one, other, "--by", "backbone,seed", "--significance", "--samples=50", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(text)))
    first, second = read_runs([one, other])
    for row in rows:
        assert (row["data"], row["reference"], row["row"]) == (first.data, "BiLSTM, 0", "CNN, 1")
        assert float(row["reference_value"]) == pytest.approx(100 * first.metrics[row["metric"]], abs=1e-4)
        assert float(row["value"]) == pytest.approx(100 * second.metrics[row["metric"]], abs=1e-4)
    assert {"P@1", "PSP@5", "macroF@5/all", "microF1@tuned"} <= {row["metric"] for row in rows}


def test_labels_without_test_documents_can_count_as_zero(fit, shown):
    run = fit()
    (read,) = read_runs([run])
    rows = [
        next(csv.DictReader(io.StringIO(shown(run, "--format=csv", f"--absent={how}")))) for how in ("skip", "zero")
    ]
    sizes = [float(row["labels/few"]) for row in rows]
    assert sizes == [read.metrics["labels/few"], (read.label_documents <= 20).sum()]
    few = [float(row["macroF@5/few"]) for row in rows]
    assert few[1] == pytest.approx(few[0] * sizes[0] / sizes[1], abs=0.01)


def test_metrics_of_validation_documents_can_be_recomputed_too(fit, tmp_path):
    lines = [json.dumps({"id": f"d{i}", "text": f"word{i % 3} more", "labels": [f"l{i % 3}"]}) for i in range(40)]
    (tmp_path / "own.jsonl").write_text("\n".join(lines))
    (run,) = read_runs([fit("--data=TextFiles", f"--data.train={tmp_path / 'own.jsonl'}")])
    assert run.data.endswith(", validation")
    found = computed(run)
    assert found == pytest.approx({name: run.metrics[name] for name in found}, abs=1e-6)


def test_nothing_heavy_is_imported(written):
    runs = [written("a/1"), written("a/2", seed=1)]
    script = (
        "import sys; from zoo.commands.main import main; main(sys.argv[1:]); import zoo.analysis.pairs; "
        f"sys.exit(' '.join({HEAVY!r} & sys.modules.keys()) or 0)"
    )
    command = [sys.executable, "-c", script, "compare", *map(str, runs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "50.00 ± 0.00" in done.stdout
    assert done.stderr == ""


def test_runs_can_be_anywhere_on_the_command_line(written, shown):
    names = ["a, b", "[x] y", "{z}: #", "1", "null", "ä😀 'q' \"r\"", "back\\slash"]
    folders = [written(f"runs/{name}", experiment=name, seed=seed) for seed, name in enumerate(names)]
    text = shown(*folders[:3], "--by", "data,experiment", "--format=csv", *folders[3:], "--published", "false")
    assert [row["experiment"] for row in csv.DictReader(io.StringIO(text))] == names
    assert len(shown("--significance=false", folders[0]).splitlines()) == 3


def test_positional_arguments_become_one_list():
    assert as_one_list(["a", "b"]) == ['["a", "b"]']
    assert as_one_list(["a", "--by", "x", "b", "--published=true", "c"]) == [
        '["a", "b", "c"]',
        "--by",
        "x",
        "--published=true",
    ]
    assert as_one_list(["--help"]) == ["--help"]
    assert as_one_list(["--by"]) == ["--by"]


def test_the_suffix_of_the_file_is_its_format(written, shown, tmp_path):
    folder = written("a/1")
    for ending, start in {"md": "### reuters", "csv": "data,experiment", "html": "<!DOCTYPE html>"}.items():
        assert shown(folder, f"--out={tmp_path / 'out'}.{ending}") == ""
        assert (tmp_path / f"out.{ending}").read_text("utf8").startswith(start)


def test_invalid_options_are_named(written, fails, tmp_path):
    def stops(*args, names):
        fails("compare", *map(str, args), names=names)

    folder = written("a/1")
    stops(names=["runs"])
    stops(tmp_path / "none", names=[tmp_path / "none"])
    stops(folder, "--by=experimet", names=["--by=experimet", "experiment"])
    stops(folder, "--columns=P@11", names=["--columns=P@11", "P@1"])
    stops(folder, "--format=pdf", names=["'table', 'markdown', 'csv', 'html'"])
    stops(folder, "--colums=P@1", names=["--colums"])
    stops(folder, "--significance", names=["--significance", "--by"])
    stops(folder, folder, "--significance", "--seed", "-1", names=["--seed=-1"])
    (folder / "metrics.json").write_text("{")
    stops(folder, names=[folder])
