"""The wheel, installed outside the repository, trains an experiment by name, predicts, and lists its parts."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SHORT = [
    "--data=Sample",
    "--data.num_documents=120",
    "--data.num_labels=20",
    "--data.words_per_document=30",
    "--model.head.head_count=10",
    "--model.head.pvae.epochs=1",
    "--trainer.limit_train_batches=2",
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
    "--wandb.mode=disabled",
]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("hatchling")
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def run(wheel, tmp_path_factory):
    """Run the installed `zoo` in a folder of its own; libraries are those of the environment of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder / "venv", with_pip=False)
    python = folder / "venv" / "bin" / "python"
    site = sysconfig.get_path("purelib", vars={"base": str(folder / "venv")})
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, str(wheel)],
        check=True,
    )
    # After its own packages come the libraries; an editable install of the repository must not be among them.
    libraries = sysconfig.get_path("purelib")
    (Path(site) / "libraries.pth").write_text(f"{libraries}\n")
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder), "OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    environment |= {name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ}

    def call(*args):
        code = "import zoo.commands.main as main; assert 'installed' in main.__file__; main.script()"
        done = subprocess.run(
            [python, "-c", code, *args], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    call.folder = folder
    return call


def test_the_wheel_has_its_experiments_types_and_license(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {Path(name).name for name in names if name.startswith("zoo/experiments/")}
    assert shipped == {path.name for path in (ROOT / "experiments").rglob("*.*")}
    assert {f"{package}/py.typed" for package in ("zoo", "heads", "backbones", "datamodules", "callbacks")} <= set(
        names
    )
    page = {path.name for path in (ROOT / "zoo/service/page").iterdir()}
    assert {f"zoo/service/page/{name}" for name in page} <= set(names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith(("tests", "benchmarks", "docs"))]


def test_fit_predict_and_list_outside_the_repository(run):
    listed = run("list")
    assert "lsfa_eurlex" in listed
    assert "PvaeAugmentor" in listed
    run("fit", "--config", "lsfa_eurlex", *SHORT, *short_stages())
    (best,) = run.folder.glob("runs/*/*/checkpoints/best.ckpt")
    (run.folder / "docs.txt").write_text("a document\nanother one\n")
    assert run("predict", f"--ckpt={best}", "--input=docs.txt", "--k=3").count('"label"') == 6
    run("report", "runs", "--partial", "--out=page")
    assert (run.folder / "page" / "index.html").is_file()


def short_stages():
    """An epoch for each stage, and no average."""
    folder = ROOT / "experiments"
    stages = yaml.safe_load((folder / "lsfa_eurlex.yaml").read_text())["stages"]
    if isinstance(stages, str):
        stages = yaml.safe_load((folder / stages).read_text())["stages"]
    trained = [stage["name"] for stage in stages if stage.get("epochs")]
    return [f"--stages.{name}.{setting}" for name in trained for setting in ("epochs=1", "average_from=null")]
