"""The README's own head, run as its reader would run it."""

import re
import subprocess
import sys
from pathlib import Path

from tests.support.output import line_with

README = Path("README.md").read_text()


def block(heading: str, language: str) -> str:
    section = README.split(f"## {heading}\n")[1].split("\n## ")[0]
    found = re.search(rf"```{language}\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return found[1]


def test_write_your_own_head(tmp_path):
    code, config, shell = (block("Write your own head", kind) for kind in ("python", "yaml", "sh"))
    assert len(code.splitlines()) < 30
    (tmp_path / "my_heads.py").write_text(code)
    (tmp_path / "my_experiment.yaml").write_text(config)
    command = shell.strip().replace("python -m zoo", f"{sys.executable} -m zoo")
    tiny = " --data.num_documents=150 --data.num_labels=20 --data.words_per_document=30 --trainer.max_epochs=2"
    done = subprocess.run(
        command + tiny + f" --wandb.mode=disabled --data.cache_dir={tmp_path / 'cache'}",
        shell=True,
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path.cwd()), "HOME": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    line_with(done.stdout, "my_experiment", "sample", "test")  # title of the table
    (written,) = (tmp_path / "runs").glob("my_experiment/*/config.yaml")
    assert "my_heads." in written.read_text()
