"""The README's examples, run as its reader would run them."""

import csv
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from datamodules.synthetic import SampleCorpus
from tests.support.output import line_with
from zoo.commands.main import main

README = Path("README.md").read_text()


def block(heading: str, language: str) -> str:
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def test_write_your_own_head(tmp_path):
    code, shell = (block("Write your own head", kind) for kind in ("python", "sh"))
    assert len(code.splitlines()) < 30
    (tmp_path / "my_heads.py").write_text(code)
    command = shell.strip().replace("python -m zoo", f"{sys.executable} -m zoo")
    tiny = " --data=Sample --data.num_documents=150 --data.num_labels=20 --data.words_per_document=30"
    short = " --stages.main.epochs=2 --model.backbone.hidden=8 --name=own --wandb.mode=disabled"
    done = subprocess.run(
        command + tiny + short + f" --data.cache_dir={tmp_path / 'cache'}",
        shell=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd()), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    line_with(done.stdout, "own", "sample", "test")  # title of the table
    (written,) = (tmp_path / "runs").glob("own/*/config.yaml")
    assert "my_heads." in written.read_text()


def test_from_a_csv_file_to_predictions(tmp_path, monkeypatch, capsys):
    shell, code = (block("From a CSV file to predictions", kind) for kind in ("sh", "python"))
    (tmp_path / "experiments").symlink_to(Path("experiments").resolve())
    monkeypatch.chdir(tmp_path)
    documents = list(SampleCorpus(num_documents=100, num_labels=10, words_per_document=30).documents("train"))
    with open("news.csv", "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["body", "tags"])
        rows.writerows([document.text, ";".join(document.labels)] for document in documents)
    capsys.readouterr()
    for line in shell.replace("\\\n", " ").splitlines():
        piped, _, command = line.rpartition(" | ")
        monkeypatch.setattr(sys, "stdin", io.StringIO(" ".join(shlex.split(piped)[1:])))
        python, module, zoo_name, *words = shlex.split(command)
        assert [python, module, zoo_name] == ["python", "-m", "zoo"]
        main([path for word in words for path in map(str, Path().glob(word) if "*" in word else [word])])
    tags = json.loads(capsys.readouterr().out.splitlines()[-1])["labels"]
    assert len(tags) == 3
    (checkpoint,) = Path("runs").glob("news/*/checkpoints/best.ckpt")
    shutil.copy(checkpoint, "best.ckpt")
    names: dict[str, Any] = {}
    exec(code, names)
    found = names["tagger"].tag(["Cocoa prices rose in Bahia"], k=3)[0]
    assert [tag["label"] for tag in tags] == [tag.label for tag in found]
