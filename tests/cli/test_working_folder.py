"""Nothing is imported from the working folder, unless the user names a module in it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from zoo.commands.own_modules import allow_working_folder, modules_named_in, split_trust

ROOT = Path(__file__).parents[2]
HOSTILE = ("torch", "yaml", "timm", "kernels", "my_heads", "rich", "jsonargparse")
SCRIPT = ["-c", "import sys; sys.path.remove(''); from zoo.commands.main import script; script()"]


@pytest.fixture
def hostile(tmp_path):
    """A folder with modules that leave a mark when they are imported."""
    for name in HOSTILE:
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'a').write({name!r})\n")
    return tmp_path


@pytest.mark.parametrize("start", [SCRIPT, ["-m", "zoo"]], ids=["script", "module"])
def test_commands_import_nothing_from_the_working_folder(hostile, start, fit):
    best = fit("--trainer.max_epochs=1") / "checkpoints" / "best.ckpt"
    (hostile / "in.txt").write_text("a document\n")
    command = [sys.executable, *start, "predict", f"--ckpt={best}", "--input=in.txt"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=hostile, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"labels"' in done.stdout
    assert not (hostile / "mark").exists(), (hostile / "mark").read_text()


@pytest.mark.parametrize(
    ("argv", "trust", "rest"),
    [
        (["--trust", "a", "--k=3"], ["a"], ["--k=3"]),
        (["--trust=a,b.c", "--trust", "d"], ["a", "b.c", "d"], []),
        (["--trust=[a, b]"], ["a", "b"], []),
        (["--k", "3"], [], ["--k", "3"]),
    ],
)
def test_trust_is_repeatable_or_a_list(argv, trust, rest):
    assert split_trust(argv) == (trust, rest)


@pytest.mark.parametrize(
    ("value", "added"),
    [
        ("my_heads.CosineHead", True),
        ("--model.head=my_heads.CosineHead", True),
        ("my_heads.py", True),
        ("backbone.*", False),
        ("corpus.jsonl", False),
        ("torch.nn.Linear", False),  # is installed
        ("my_heads", False),
    ],
)
def test_the_working_folder_is_searched_if_a_module_in_it_is_named(hostile, monkeypatch, value, added):
    monkeypatch.chdir(hostile)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    allow_working_folder(modules_named_in([value]))
    assert (str(hostile) in sys.path[-1:]) is added
