import json

import pytest

from tests.unit.training.test_tagger import TEXTS, make
from zoo.commands.main import main
from zoo.deploy import parity


@pytest.fixture
def small(tmp_path):
    make().save(tmp_path / "small.ckpt")
    (tmp_path / "docs.jsonl").write_text("".join(json.dumps({"text": t, "labels": ["l0"]}) + "\n" for t in TEXTS))
    return f"--ckpt={tmp_path / 'small.ckpt'}", f"--input={tmp_path / 'docs.jsonl'}", "--format=torch"


def test_a_folder_appears_once_it_is_verified(small, tmp_path, monkeypatch, fails, capsys):
    out = tmp_path / "model"
    fails("export", small[0], f"--out={out}", names=["small.ckpt", "--input"])  # it names no corpus
    fails("export", *small, f"--out={out}", "--int8", names=["--int8"])
    with monkeypatch.context() as patch:
        patch.setattr(parity, "TOLERANCE", -1.0)
        fails("export", *small, f"--out={out}", names=["model.pt2"])
    assert {path.name for path in tmp_path.iterdir()} == {"small.ckpt", "docs.jsonl"}
    main(["export", *small, f"--out={out}", "--documents=10", "--k=3"])
    assert "10 of 10" in capsys.readouterr().out
    files = {"README.md", "config.json", "labels.json", "model.pt2", "parity.json", "predict.py", "tokenizer.json"}
    assert {path.name for path in out.iterdir()} == files
    report = json.loads((out / "parity.json").read_text())
    assert (report["documents"], report["model.pt2"]["same"]) == (10, 10)
    assert "docs.jsonl" in (out / "README.md").read_text()
    fails("export", *small, f"--out={out}", names=[out])  # it exists
