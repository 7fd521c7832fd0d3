"""`python -m zoo data`: named, prepared, counted, converted and checked through the command line."""

import gzip
import json
import subprocess
import sys

import pytest

from datamodules.prepare.readers import Format
from datamodules.tools.locate import corpus_at
from datamodules.tools.statistics import Published
from tests.support.output import line_with, numbers
from zoo.commands.main import main

CORPUS = {
    "train": [("Cocoa prices rose in Bahia", ["cocoa"]), ("A cobalt mine", ["cobalt", "mining"])],
    "test": [("Cocoa and cobalt", ["cocoa", "cobalt"])],
}


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "reuters"
    folder.mkdir()
    for split, rows in CORPUS.items():
        lines = [
            json.dumps({"id": f"{split}{number}", "text": text, "labels": labels})
            for number, (text, labels) in enumerate(rows)
        ]
        (folder / f"{split}.jsonl.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    return folder


@pytest.fixture
def shown(capsys):
    def run(*args):
        capsys.readouterr()
        main(["data", *map(str, args)])
        return capsys.readouterr().out

    return run


def test_list_says_where_corpora_are(corpus, shown, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    monkeypatch.setenv("ZOO_DATA", str(corpus.parent))
    lines = {line.split()[0]: line for line in shown("list").splitlines()}
    assert lines["Reuters"].rstrip().endswith(str(corpus))
    assert all(str(corpus.parent) not in lines[name] for name in ("EurLex", "Sample"))
    assert "45,000" in lines["EurLex"]


def test_prepare_fills_the_cache_and_compares(corpus, shown, monkeypatch, tmp_path):
    from datamodules import Reuters

    rows = (Published("one paper", 9, 9, 9), Published("another", 3, 1, 3, 1.5))
    monkeypatch.setattr(Reuters, "published", rows, raising=False)
    output = shown("prepare", "REUTERS", f"--root={corpus}", "--max_length=7")
    assert numbers(line_with(output, "another")) == [3, 2]
    assert "one paper" not in output
    assert list((tmp_path / "cache").glob("reuters-*/train.arrow"))
    monkeypatch.setattr(Reuters, "published", (Published("a third", 2, 1, 3),), raising=False)
    assert numbers(line_with(shown("prepare", "reuters", "--root", corpus), "a third")) == []  # all as published


def test_prepare_of_the_sample(shown, fails, tmp_path):
    line_with(shown("prepare", "sample"), "train")
    assert list((tmp_path / "cache").glob("sample-*/train.arrow"))
    fails("data", "prepare", "Sample", "--root=x", names=["Sample", "--root"])


def test_stats_as_table_and_as_json(corpus, shown):
    assert numbers(line_with(shown("stats", corpus), "train")) == [2]
    found = json.loads(shown("stats", "--json", corpus))
    assert found["corpus"] == "reuters"
    assert found["documents"] == {"train": 2, "test": 1}
    assert found == json.loads(shown("stats", corpus, "--json"))
    assert json.loads(shown("stats", corpus / "test.jsonl.gz", "--json", "true"))["documents"] == {"train": 1}


def test_a_name_is_as_good_as_a_path(corpus, shown, monkeypatch, fails):
    monkeypatch.setenv("ZOO_DATA", str(corpus.parent))
    assert json.loads(shown("stats", "Reuters", "--json"))["labels"] == 3
    fails("data", "stats", "eurlex57k", names=["data prepare eurlex57k"])


def test_stats_tells_of_bad_rows(tmp_path, capsys):
    path = tmp_path / "a.csv"
    path.write_text('body,tags\n"x y",a;b\nz\n')
    main(["data", "stats", str(path), "--text_column=body", "--label_column=tags", "--label_sep=;"])
    output = capsys.readouterr()
    assert numbers(line_with(output.err, path), without=path)[:2] == [1, 3]  # rows, line
    assert numbers(line_with(output.out, "train")) == [1]


def test_convert_a_file_and_a_folder(corpus, shown, tmp_path, fails):
    shown("convert", corpus / "train.jsonl.gz", tmp_path / "a.txt")
    assert (tmp_path / "a.txt").read_text().splitlines()[1] == "train1\tcobalt,mining\tA cobalt mine"
    shown("convert", corpus, tmp_path / "sparse", "--format", "xmc.gz")
    names = {path.name for path in (tmp_path / "sparse").iterdir()}
    assert names == {"train.xmc.gz", "test.xmc.gz", "labels.txt", "features.txt"}
    found = corpus_at(tmp_path / "sparse", Format()).sources["test"].read(lambda _: None)
    assert [(d.text, d.labels) for d in found] == [("cocoa:1 cobalt:1", ["cocoa", "cobalt"])]
    given = ["data", "convert", str(corpus), str(tmp_path / "sparse"), "--format=xmc.gz"]
    fails(*given, names=[tmp_path / "sparse", "--overwrite"])
    shown("convert", "--overwrite", corpus, tmp_path / "sparse", "--format=xmc.gz")


def test_check_exits_with_one_if_anything_is_wrong(corpus, shown, capsys):
    (line,) = shown("check", corpus).splitlines()
    assert "reuters" in line
    assert json.loads(shown("check", corpus, "--json"))["problems"] == []
    (corpus / "val.jsonl").write_text('{"id": 7, "text": "", "labels": ["[bold]"]}')
    for options in ([], ["--json"]):
        with pytest.raises(SystemExit) as stop:
            main(["data", "check", str(corpus), *options])
        assert stop.value.code == 1
    lines, _, content = capsys.readouterr().out.partition("{")
    assert numbers(line_with(lines, "val")) == [1, 1, 7]  # documents, line, id
    assert numbers(line_with(lines, "[bold]")) == [1]
    problems = json.loads("{" + content)["problems"]
    assert [problem["kind"] for problem in problems] == ["empty texts", "unseen labels"]
    assert problems[0]["documents"] == [[{"split": "val", "line": 1, "id": "7"}]]


def test_help(shown, capsys):
    for arguments in ([], ["--help"]):
        assert all(f"  {name} " in shown(*arguments) for name in ("list", "prepare", "stats", "convert", "check"))
    main(["data", "stats", "--help"])
    assert "usage: zoo data stats" in capsys.readouterr().out


def test_mistakes_end_in_one_line(corpus, fails, tmp_path):
    fails("data", "count", names=["`data count`", "data convert"])
    fails("data", "prepare", "reutres", names=["reutres", "Reuters"])
    fails("data", "prepare", "zzz", names=["zzz", "Aapd", "EurLex"])
    fails("data", "stats", "nowhere", names=["nowhere"])
    fails("data", "check", "nowhere.csv", names=["nowhere.csv"])
    fails("data", "stats", names=["path"])
    fails("data", "stats", str(tmp_path), names=[tmp_path])
    (tmp_path / "a.doc").write_text("x")
    fails("data", "check", str(tmp_path / "a.doc"), names=["a.doc"])
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"x" * 1000)[:-9])
    fails("data", "stats", str(tmp_path / "a.jsonl.gz"), names=["a.jsonl.gz"])
    fails("data", "check", str(corpus), "--near=2", names=["--near=2"])
    convert = ["data", "convert", str(corpus), str(tmp_path / "out")]
    fails(*convert, names=["--format"])
    fails(*convert, "--format=csv", names=["csv", ".jsonl", ".parquet"])
    assert not (tmp_path / "out").exists()
    file = str(corpus / "train.jsonl.gz")
    fails("data", "convert", file, str(tmp_path / "out.txt"), "--format=txt", names=["--format"])
    fails("data", "convert", file, str(tmp_path / "out.csv"), names=["out.csv", ".jsonl", ".parquet"])
    fails("data", "stats", file, "--text_column=body", names=["'body'", "'text'", "--text_column="])


def test_bad_rows_of_a_conversion_name_its_own_option(fails, tmp_path, shown):
    (tmp_path / "a.jsonl").write_text('{"text": "a", "labels": ["x"]}\n{\n')
    given = ["data", "convert", str(tmp_path / "a.jsonl"), str(tmp_path / "b.txt")]
    fails(*given, names=["a.jsonl", " --max_bad_rows=1"])
    shown("convert", tmp_path / "a.jsonl", tmp_path / "b.txt", "--max_bad_rows=1")
    assert (tmp_path / "b.txt").read_text() == "\tx\ta\n"


def test_a_reader_that_has_gone(corpus):
    command = f"{sys.executable} -m zoo data stats {corpus} --json | true"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert "Traceback" not in done.stderr


def test_a_named_corpus_has_its_own_columns_and_its_own_advice(corpus, fails, monkeypatch, tmp_path):
    fails("data", "stats", "reuters", "--text_column=body", names=["Reuters", "columns"])
    monkeypatch.setenv("ZOO_DATA", str(tmp_path / "nothing"))
    fails("data", "stats", "wiki10", names=["`zoo data prepare wiki10`"])
    assert "data prepare" not in fails("data", "stats", "reuters")
    fails("data", "prepare", "reuters", f"--root={tmp_path / 'none'}", names=[tmp_path / "none", "--root"])
