import gzip
import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import zoo
from tests.support.errors import raises
from tests.support.output import numbers
from tests.unit.training.test_tagger import make
from zoo.commands.documents import documents
from zoo.commands.main import main
from zoo.commands.output import json_line
from zoo.core.errors import UserError


@pytest.fixture
def ckpt(fit):
    return str(fit("--trainer.max_epochs=1") / "checkpoints" / "best.ckpt")


@pytest.fixture
def small(tmp_path):
    """A checkpoint without training."""
    make().save(tmp_path / "small.ckpt")
    return str(tmp_path / "small.ckpt")


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


# --- input


def put(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path: Path, max_length: int = 100) -> list[tuple[object, str]]:
    return list(documents(str(path), "text", "id", max_length))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.txt", "\ufefffirst\r\n\n \nlast", [(1, "first"), (4, "last")]),
        ("a.txt", "über\n".encode("utf-16"), [(1, "über")]),
        ("a.txt", "\ufeffüber\n".encode("utf-16-be"), [(1, "über")]),
        ("a.txt", "", []),
        ("a.txt.gz", gzip.compress(b"", mtime=0), []),
        ("a.unknown", '\n{"id": 3, "text": "a"}\n', [(3, "a")]),
        ("a.jsonl", '\ufeff{"text": "a\\u0000\\ud800"}\n', [(1, "a\0\ud800")]),
        ("a.jsonl", '{"id": null, "text": "a"}\n{"id": [{"b": 1.5}], "text": ""}\n', [(None, "a"), ([{"b": 1.5}], "")]),
        ("a.csv", "id,text\n007,a\n,b\n", [("007", "a"), ("", "b")]),
        ("a.tsv.gz", gzip.compress(b"text\na\n", mtime=0), [(1, "a")]),
        ("a.csv", "", []),
    ],
)
def test_documents(tmp_path, name, content, expected):
    assert read(put(tmp_path / name, content)) == expected


def test_ids_of_parquet_keep_their_type(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"id": [7, None], "text": ["a", "b"]}), tmp_path / "a.parquet")
    assert read(tmp_path / "a.parquet") == [(7, "a"), (None, "b")]


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        ("a.txt", b"a\nb\0\n", ["line 2", "NUL"]),
        ("a.txt", "text".encode("utf-16-le"), ["line 1", "NUL"]),
        ("a.txt", b"a\n\ncaf\xe9\n", ["line 3", "UTF-8"]),
        ("a.csv", b"text\ncaf\xe9\n", ["line 2", "UTF-8"]),
        ("a.txt", "a\n" + "b" * 101 + "\n", ["line 2", "`max_line_length=100`"]),
        ("a.jsonl", "[]\n", ["line 1", "JSON"]),
        ("a.jsonl", "[" * 99, ["line 1", "JSON"]),
        ("a.jsonl", '{"text": 5}\n', ["line 1", "'text'", "int"]),
        ("a.jsonl", '{"text": "a"}\n{}\n', ["line 2", "'text'", "`text_column`"]),
        ("a.csv", "body\na\n", ["'text'", "'body'", "text_column"]),
        ("a.csv", "text,id\na\n", ["line 2"]),
        ("a.txt.gz", gzip.compress(Random(0).randbytes(9999), mtime=0)[:5000], ["cannot be read"]),
        ("a.txt.gz", "no gzip", ["cannot be read"]),
        ("a.parquet", "no parquet", ["cannot be read"]),
    ],
)
def test_documents_that_cannot_be_read(tmp_path, name, content, parts):
    path = put(tmp_path / name, content)
    with raises(UserError, path, *parts):
        read(path)


def test_a_line_of_the_greatest_length(tmp_path):
    assert len(read(put(tmp_path / "a.txt", "b" * 100 + "\r\n"))) == 1


# --- output


@pytest.mark.parametrize("encoding", [None, "utf-8", "ascii", "latin-1", "cp1252"])
@pytest.mark.parametrize("value", ["é", "\ud800", "日本", ["\udcff", {"é": None}], 10**30, 1.5, "007", True])
def test_a_line_is_valid_json_in_every_encoding(value, encoding):
    line = json_line({"id": value}, encoding)
    assert json.loads(line.encode(encoding or "utf-8").decode(encoding or "utf-8")) == {"id": value}


def test_numbers_that_json_does_not_have_are_null():
    def refuse(constant):
        raise AssertionError(constant)

    nan, infinity = float("nan"), float("inf")
    line = json_line({"id": [nan, {"a": -infinity, "b": (infinity,)}], "c": 0.5})
    assert json.loads(line, parse_constant=refuse) == {"id": [None, {"a": None, "b": [None]}], "c": 0.5}
    assert json.loads(json_line({"id": Path("a")})) == {"id": "a"}


@pytest.mark.parametrize("alias", ["docs.jsonl", "hard.jsonl", "soft.jsonl", "../{name}/docs.jsonl", "small.ckpt"])
def test_inputs_are_not_overwritten(small, tmp_path, monkeypatch, fails, alias):
    monkeypatch.chdir(tmp_path)
    source = put(tmp_path / "docs.jsonl", '{"text": "cod"}\n')
    (tmp_path / "hard.jsonl").hardlink_to(source)
    (tmp_path / "soft.jsonl").symlink_to(source)
    alias, before = alias.format(name=tmp_path.name), Path(small).read_bytes()
    fails("predict", f"--ckpt={small}", f"--input={source}", f"--out={alias}", names=[f"--out={alias}"])
    if alias != "small.ckpt":
        fails("add-labels", f"--ckpt={small}", f"--input={source}", f"--out={alias}", names=[f"--out={alias}"])
    assert source.read_text() == '{"text": "cod"}\n'
    assert Path(small).read_bytes() == before


def test_places_that_cannot_be_written(small, tmp_path, fails):
    given = ["predict", f"--ckpt={small}", f"--input={put(tmp_path / 'docs.txt', 'cod')}"]
    (tmp_path / "loop").symlink_to("loop")
    for out in (tmp_path, tmp_path / "loop", tmp_path / "no" / "where", tmp_path / ("x" * 300), "/proc/x", "/dev/full"):
        fails(*given, f"--out={out}", names=[out])
    assert {path.name for path in tmp_path.iterdir()} == {"small.ckpt", "docs.txt", "loop"}


@pytest.mark.parametrize("option", ["k=0", "batch_size=0", "threshold=1.5", "threshold=-1", "max_line_length=0"])
def test_options_out_of_range_are_refused_before_the_model_is_loaded(fails, option):
    fails("predict", "--ckpt=none", "--input=none", f"--{option}", names=[f"--{option}"])


def test_documents_without_known_words_are_counted(small, tmp_path, capsys):
    source = put(tmp_path / "docs.jsonl", '{"text": ""}\n{"text": "xyzzy"}\n{"text": "cod"}\n')
    main(["predict", f"--ckpt={small}", f"--input={source}"])
    shown = capsys.readouterr()
    assert len(shown.out.splitlines()) == 3
    assert "2 of 3" in shown.err
    main(["predict", f"--ckpt={small}", f"--input={put(source, '')}"])
    shown = capsys.readouterr()
    assert shown.out == ""
    assert str(source) in shown.err


# --- in processes of their own


def command(*args: str) -> list[str]:
    return [sys.executable, "-m", "zoo", "predict", *args]


def test_a_line_is_answered_while_the_pipe_stays_open(small):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command("--ckpt", small, "--input", "-", "--k", "1"), text=True, **pipes) as process:
        for number in (1, 2):
            process.stdin.write("cod quota\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["id"] == number
        process.send_signal(signal.SIGINT)  # while the reader waits
        assert process.wait(30) == 130
        assert process.stderr.read().splitlines()[-1] == "stopped"


@pytest.mark.parametrize(
    ("shell", "code", "parts"),
    [
        ("$ZOO --input - <&-", 2, ["--input"]),
        ("$ZOO --input docs.jsonl >&-", 2, ["--out"]),
        ("$ZOO --input docs.jsonl >/dev/full", 2, ["standard output"]),
        ("$ZOO --input - --out docs.jsonl <docs.jsonl", 2, ["--out=docs.jsonl"]),
        ("$ZOO --input docs.jsonl >>docs.jsonl", 2, ["--input=docs.jsonl"]),
        ("PYTHONIOENCODING=ascii $ZOO --input docs.jsonl --out /dev/stdout | cat; exit ${PIPESTATUS[0]}", 0, []),
        ("yes cod | $ZOO --input - | head -1; exit ${PIPESTATUS[1]}", 1, []),
    ],
)
def test_descriptors(small, tmp_path, shell, code, parts):
    put(tmp_path / "docs.jsonl", '{"id": "é", "text": "cod"}\n')
    environment = os.environ | {"ZOO": " ".join(command("--ckpt", small)), "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr
    assert len(errors) == (code == 2)
    assert all(part in errors[0] for part in parts)
    if code < 2:
        assert [row["id"] for row in map(json.loads, done.stdout.splitlines())] == ["é" if code == 0 else 1]
