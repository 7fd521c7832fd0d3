import gzip
import io
import json
from pathlib import Path

import pytest

import zoo
from tests.support.output import numbers
from zoo.commands.main import main


@pytest.fixture
def ckpt(fit):
    return str(fit("--trainer.max_epochs=1") / "checkpoints" / "best.ckpt")


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_jsonl_in_jsonl_out_in_the_same_order(ckpt, tmp_path):
    texts = ["word " * n + "quota in the Baltic" for n in (1, 50, 3, 0, 20)] + [""]
    source, target = tmp_path / "docs.jsonl", tmp_path / "tags.jsonl"
    source.write_text("\n".join(json.dumps({"id": f"d{i}", "text": t}) for i, t in enumerate(texts)))
    main(["predict", f"--ckpt={ckpt}", f"--input={source}", f"--out={target}", "--k=3", "--batch_size=2"])
    found = rows(target)
    assert [row["id"] for row in found] == [f"d{i}" for i in range(6)]
    tags = zoo.load(ckpt).tag(texts, k=3)
    for row, expected in zip(found, tags, strict=True):
        assert [x["label"] for x in row["labels"]] == [tag.label for tag in expected]
        assert [x["score"] for x in row["labels"]] == pytest.approx([tag.score for tag in expected], abs=1e-5)
        assert len(row["labels"]) == 3


def test_plain_lines_from_standard_input(ckpt, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("first document\n\nsecond document\n"))
    main(["predict", "--ckpt", ckpt, "--input", "-", "--k", "1"])
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["id"] for row in found] == [1, 3]
    assert all(len(row["labels"]) == 1 for row in found)


def test_gzipped_lines_and_threshold(ckpt, tmp_path):
    source, target = tmp_path / "docs.txt.gz", tmp_path / "tags.jsonl"
    with gzip.open(source, "wt") as file:
        file.write("a document\n")
    main(["predict", f"--ckpt={ckpt}", f"--input={source}", f"--out={target}", "--threshold=1.0"])
    assert rows(target) == [{"id": 1, "labels": []}]
    main(["predict", f"--ckpt={ckpt}", f"--input={source}", f"--out={target}", "--threshold=tuned", "--k=99"])
    least = zoo.load(ckpt).threshold
    assert all(tag["score"] >= least - 1e-6 for tag in rows(target)[0]["labels"])


def test_it_streams(ckpt, tmp_path, monkeypatch):
    """No more than a window of documents is read ahead of what is answered."""
    tagger = zoo.load(ckpt)
    tagger.batch_size = 2
    taken = []
    source = (taken.append(i) or f"document {i}" for i in range(1000))
    stream = tagger.stream(source, k=1)
    next(stream)
    assert len(taken) <= 2 * 16


def test_bad_lines_are_named_and_no_half_file_stays(ckpt, tmp_path, fails):
    source, target = tmp_path / "docs.jsonl", tmp_path / "tags.jsonl"
    source.write_text('{"text": "fine"}\n{"txt": "no text"}\n')
    given = ["predict", f"--ckpt={ckpt}", f"--input={source}"]
    assert 2 in numbers(fails(*given, f"--out={target}", names=[source, "'text'"]), without=source)  # the line
    source.write_text('{"text": "fine"}\n{"text": \n')
    assert 2 in numbers(fails(*given, f"--out={target}", names=[source, "JSON"]), without=source)
    assert {p.name for p in tmp_path.iterdir() if "tags" in p.name} == set()
    fails("predict", f"--ckpt={ckpt}", "--input=nowhere.jsonl", names=["nowhere.jsonl"])
    assert 0 in numbers(fails(*given, "--k=0", names=["k"]))
    assert 0 in numbers(fails(*given, "--batch_size=0", names=["batch_size"]))
    fails(*given, f"--out={tmp_path}", names=[tmp_path])
    fails(*given, "--device=tpu9", names=["tpu9"])


def test_tables_and_json_after_a_blank_line(ckpt, tmp_path, monkeypatch, capsys):
    (tmp_path / "docs.csv").write_text("key,body\na,first text\nb,second text\n")
    target = tmp_path / "tags.jsonl"
    columns = ["--text_column=body", "--id_column=key"]
    main(["predict", f"--ckpt={ckpt}", f"--input={tmp_path / 'docs.csv'}", f"--out={target}", *columns])
    assert [row["id"] for row in rows(target)] == ["a", "b"]
    monkeypatch.setattr("sys.stdin", io.StringIO('\n{"id": 7, "text": "a text"}\n'))
    capsys.readouterr()
    main(["predict", f"--ckpt={ckpt}", "--input=-"])
    assert json.loads(capsys.readouterr().out)["id"] == 7


def test_a_pipe_stays_a_pipe(ckpt, tmp_path):
    (tmp_path / "in.txt").write_text("a document\n")
    main(["predict", f"--ckpt={ckpt}", f"--input={tmp_path / 'in.txt'}", "--out=/dev/null"])
    assert Path("/dev/null").is_char_device()


def test_one_string_is_not_a_list_of_texts(ckpt):
    with pytest.raises(TypeError, match="texts"):
        zoo.load(ckpt).tag("a text")
