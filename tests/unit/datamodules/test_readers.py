"""Every format gives the same documents, and every broken file an actionable message."""

import bz2
import csv
import gzip
import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import datamodules.corpora.sparse_files  # noqa: F401  # adds its reader
from datamodules.prepare.readers import BadRows, Document, Format, fingerprint, read_documents
from tests.support.errors import assert_message, raises
from zoo.core.errors import UserError

DOCUMENTS = [
    Document("a", "First, with a comma", ["x", "y z"]),
    Document("b", 'Zweites: ünï "quoted" \U0001f600', []),
    Document("c", "", ["x"]),
]


def rows(documents: list[Document]) -> list[dict[str, Any]]:
    return [{"id": d.id, "text": d.text, "labels": d.labels} for d in documents]


def as_jsonl(documents: list[Document]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows(documents)).encode()


def as_delimited(documents: list[Document], delimiter: str) -> bytes:
    out = io.StringIO(newline="")
    writer = csv.writer(out, delimiter=delimiter)
    writer.writerow(["id", "labels", "text"])
    writer.writerows([d.id, ",".join(d.labels), d.text] for d in documents)
    return out.getvalue().encode()


def as_parquet(documents: list[Document]) -> bytes:
    schema = pa.schema({"id": pa.string(), "text": pa.string(), "labels": pa.list_(pa.string())})
    out = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows(documents), schema), out)
    return out.getvalue()


def as_txt(documents: list[Document]) -> bytes:
    return "".join(f"{d.id}\t{','.join(d.labels)}\t{d.text}\n" for d in documents).encode()


WRITERS: dict[str, Callable[[list[Document]], bytes]] = {
    ".jsonl": as_jsonl,
    ".json": as_jsonl,
    ".ndjson": as_jsonl,
    ".csv": lambda documents: as_delimited(documents, ","),
    ".tsv": lambda documents: as_delimited(documents, "\t"),
    ".txt": as_txt,
    ".parquet": as_parquet,
}


PACK: dict[str, Callable[[bytes], bytes]] = {".gz": gzip.compress, ".bz2": bz2.compress}


def put(folder: Path, name: str, content: bytes) -> Path:
    path = folder / name
    path.write_bytes(PACK.get(path.suffix, bytes)(content))
    return path


def read(path: Path, format: Format | None = None, max_bad_rows: int = 0) -> list[Document]:
    return list(read_documents(path, format or Format(), BadRows(max_bad_rows)))


def read_bytes(folder: Path, name: str, content: bytes, **format: str) -> list[Document]:
    return read(put(folder, name, content), Format(**format))


def refused(path: Path, *parts: object, format: Format | None = None) -> None:
    with raises(UserError, path.name, *parts):
        read(path, format)


@pytest.mark.parametrize("packed", ["", *PACK])
@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_same_documents(tmp_path: Path, kind: str, packed: str) -> None:
    path = put(tmp_path, f"train.v1{kind}{packed}", WRITERS[kind](DOCUMENTS))
    assert read(path) == DOCUMENTS


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".txt", ".parquet"])
def test_progress_adds_up_to_the_file_size(tmp_path: Path, kind: str, packed: str) -> None:
    many = [Document(f"d{i}", f"text {i * i * 7919} " * 20, [f"l{i % 7}"]) for i in range(3_100)]
    path = put(tmp_path, f"train{kind}{packed}", WRITERS[kind](many))
    steps: list[int] = []
    assert list(read_documents(path, Format(), BadRows(), steps.append)) == many
    assert sum(steps) == path.stat().st_size
    assert len(steps) == 4
    assert min(steps) >= 0


@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".tsv", ".txt"])
def test_windows_files_with_byte_order_mark(tmp_path: Path, kind: str) -> None:
    content = b"\xef\xbb\xbf" + WRITERS[kind](DOCUMENTS).replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
    assert read_bytes(tmp_path, f"train{kind}", content) == DOCUMENTS


@pytest.mark.parametrize("kind", [kind + packed for kind in WRITERS for packed in ("", *PACK)])
def test_empty_files_have_no_documents(tmp_path: Path, kind: str) -> None:
    assert read_bytes(tmp_path, f"train{kind}", b"") == []
    (tmp_path / f"train{kind}").write_bytes(b"")
    assert read(tmp_path / f"train{kind}") == []


def test_line_breaks_and_delimiters_in_quotes(tmp_path: Path) -> None:
    documents = [Document("a", "one\ntwo\r\nthree\rfour", ["x"]), Document("b", "tab\there, comma", ["y"])]
    assert read_bytes(tmp_path, "train.csv", WRITERS[".csv"](documents)) == documents
    assert read_bytes(tmp_path, "train.tsv", WRITERS[".tsv"](documents)) == documents


def test_txt_splits_at_the_first_two_tabs(tmp_path: Path) -> None:
    assert read_bytes(tmp_path, "a.txt", b"7\tx\tone\ttwo\t\n") == [Document("7", "one\ttwo\t", ["x"])]


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    assert read_bytes(tmp_path, "a.jsonl", b"\n  \r\n" + as_jsonl(DOCUMENTS) + b"\n") == DOCUMENTS
    assert read_bytes(tmp_path, "a.txt", b"\n" + as_txt(DOCUMENTS) + b"\r\n\n") == DOCUMENTS
    assert read_bytes(tmp_path, "a.csv", b"\r\n" + as_delimited(DOCUMENTS, ",") + b"\n\r\n") == DOCUMENTS


def test_columns_can_be_renamed(tmp_path: Path) -> None:
    content = b'{"key": 5, "body": "t", "topics": ["x"], "text": 1}\n'
    found = read_bytes(tmp_path, "a.jsonl", content, text_column="body", label_column="topics", id_column="key")
    assert found == [Document("5", "t", ["x"])]


def test_rows_without_id(tmp_path: Path) -> None:
    content = b"".join(b'{%s"text": "", "labels": []}\n' % id for id in (b"", b'"id": "", ', b'"id": 0, '))
    assert [d.id for d in read_bytes(tmp_path, "a.jsonl", content)] == ["", "", "0"]
    assert [d.id for d in read_bytes(tmp_path, "a.csv", b"text,labels\nt,x\nt,y\n")] == ["", ""]
    assert [d.id for d in read_bytes(tmp_path, "a.txt", b"\tx\tt\n")] == [""]
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["t"], "labels": [["x"]]}), table)
    assert [d.id for d in read_bytes(tmp_path, "a.parquet", table.getvalue())] == [""]


@pytest.mark.parametrize(
    ("written", "separator", "labels"),
    [
        ("x,y", None, ["x", "y"]),
        (" x , ,y,x,", None, ["x", "y"]),
        ("x;y,z", ";", ["x", "y,z"]),
        ("x y  z", " ", ["x", "y", "z"]),
        ("x||y", "||", ["x", "y"]),
        ("", None, []),
    ],
)
def test_labels_in_one_string(tmp_path: Path, written: str, separator: str | None, labels: list[str]) -> None:
    format = Format(label_sep=separator)
    line = json.dumps({"text": "t", "labels": written}).encode()
    assert read(put(tmp_path, "a.csv", f'text,labels\nt,"{written}"\n'.encode()), format)[0].labels == labels
    assert read(put(tmp_path, "a.txt", f"1\t{written}\tt\n".encode()), format)[0].labels == labels
    assert read(put(tmp_path, "a.jsonl", line), Format(label_sep=separator or ","))[0].labels == labels


def test_labels_in_a_list(tmp_path: Path) -> None:
    content = b'{"text": "t", "labels": [3, "x", "3", " x", "", "a,b"]}'
    assert read_bytes(tmp_path, "a.jsonl", content)[0].labels == ["3", "x", "a,b"]
    assert read_bytes(tmp_path, "b.jsonl", content, label_sep=",")[0].labels == ["3", "x", "a,b"]
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["t"], "labels": [[3, 4, 3]]}), table)
    assert read_bytes(tmp_path, "a.parquet", table.getvalue())[0].labels == ["3", "4"]


TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=40)
LINE = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), max_size=40)
LABEL = (
    st.text(st.characters(codec="utf-8", exclude_categories=["Cc"], exclude_characters=","), max_size=8)
    .map(str.strip)
    .filter(bool)
)


def documents(text: st.SearchStrategy[str], id: st.SearchStrategy[str]) -> st.SearchStrategy[list[Document]]:
    labels = st.lists(LABEL, max_size=4, unique=True)
    return st.lists(st.builds(Document, id.filter(bool), text, labels), max_size=5)


@settings(max_examples=40, deadline=None)
@given(anything=documents(TEXT, LINE), lines=documents(LINE, LINE.filter(str.strip)))
def test_random_documents_survive_a_round_trip(anything: list[Document], lines: list[Document]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind in (".jsonl", ".csv", ".tsv", ".parquet"):
            assert read_bytes(Path(folder), f"a{kind}", WRITERS[kind](anything)) == anything
        assert read_bytes(Path(folder), "a.txt", as_txt(lines)) == lines


GOOD = b'{"text": "t", "labels": ["x"]}\n'


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", GOOD + b"oops", "JSON"),
        ("a.jsonl", GOOD + b'["t"]', "JSON"),
        ("a.jsonl", GOOD + b'{"text": "\xff", "labels": []}', "UTF-8"),
        ("a.jsonl", GOOD + b'{"labels": []}', "'text'"),
        ("a.jsonl", GOOD + b'{"text": "t"}', "'labels'"),
        ("a.jsonl", GOOD + b'{"text": null, "labels": []}', "'text'"),
        ("a.jsonl", GOOD + b'{"text": 5, "labels": []}', "int"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": "x"}', "'labels'"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": null}', "'labels'"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": [{}]}', "dict"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": [NaN]}', "float"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": [true]}', "bool"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": [null]}', "null"),
        ("a.csv", b"text,labels\nt\nt,x\n", "1 "),
        ("a.csv", b"text,labels\nt,x,y\nt,x\n", "3 "),
        ("a.csv", b"text,labels\nt\xff,x\nt,x\n", "UTF-8"),
        ("a.csv", b'text,labels\n"t" t,x\nt,x\n', "csv"),
        ("a.csv", b'text,labels\n"t,x\nt,x\n', "csv"),
        ("a.txt", b"1\tx\tt\n2\tt\n", "id<TAB>labels<TAB>text"),
        ("a.txt", b"1\tx\tt\n2\tx\t\xe4\n", "UTF-8"),
    ],
)
def test_bad_rows_are_reported_and_tolerated(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    path = put(tmp_path, name, content)
    refused(path, "line 2", reason, "`max_bad_rows=1`")
    bad = BadRows(1)
    assert len(list(read_documents(path, Format(), bad))) == (0 if b'"t,x' in content else 1)
    (line,) = bad.report(path)
    assert_message(line, path, "line 2", reason)


def test_bad_rows_of_parquet_are_counted_in_rows(tmp_path: Path) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["t", None, "t"], "labels": [["x"], ["x"], None]}), table)
    refused(put(tmp_path, "a.parquet", table.getvalue()), "rows 2, 3", "'text'", "`max_bad_rows=2`")


def test_bad_rows_are_counted_and_five_shown(tmp_path: Path) -> None:
    lines = [b"oops\n" if n in {3, 8, 9, 15, 20, 21, 30} else GOOD for n in range(1, 41)]
    path = put(tmp_path, "train.jsonl.gz", b"".join(lines))
    refused(path, 7, "3, 8, 9, 15, 20 ", "JSON", "`max_bad_rows=7`")


def test_csv_rows_are_named_by_their_first_line(tmp_path: Path) -> None:
    content = b'text,labels\n"one\ntwo",x\n\n"three\nfour",x,y\n'
    refused(put(tmp_path, "a.csv", content), "line 5", 3)


@pytest.mark.parametrize(("header", "name"), [(b"text,labels,labels", "labels"), (b"id,text,labels,id", "id")])
def test_repeated_columns_are_rejected(tmp_path: Path, header: bytes, name: str) -> None:
    refused(put(tmp_path, "a.csv", header + b"\na,b,c\n"), repr(name))


def test_bad_rows_are_counted_over_all_files(tmp_path: Path) -> None:
    one = put(tmp_path, "one.jsonl", b"oops\n" + GOOD)
    two = put(tmp_path, "two.jsonl", GOOD + b"oops\noops\n")
    good = put(tmp_path, "good.jsonl", GOOD)
    bad = BadRows(max_bad_rows=2)
    for _ in range(3):  # reading a file again does not count its rows again
        assert [d.id for d in read_documents(one, Format(), bad)] == [""]
    with raises(UserError, "two.jsonl", "2, 3", "`max_bad_rows=3`"):
        list(read_documents(two, Format(), bad))
    assert len(list(read_documents(good, Format(), bad))) == 1
    for path, places in ((one, "line 1"), (two, "lines 2, 3")):
        (line,) = bad.report(path)
        assert_message(line, path, places, "JSON")
    assert bad.report(good) == []


def test_missing_columns(tmp_path: Path) -> None:
    for kind in (".csv", ".tsv"):
        path = put(tmp_path, f"a{kind}", WRITERS[kind](DOCUMENTS))
        names = ("'body'", "'id', 'labels', 'text'", "`text_column=", kind, ".txt")
        refused(path, *names, format=Format(text_column="body"))
    for kind in (".parquet", ".jsonl"):
        path = put(tmp_path, f"a{kind}", WRITERS[kind](DOCUMENTS))
        refused(path, "'tags'", "'id', 'text', 'labels'", "`label_column=", format=Format(label_column="tags"))


def test_a_json_column_is_missing_if_no_early_row_has_it(tmp_path: Path) -> None:
    without = b'{"body": "t", "labels": []}\n'
    refused(put(tmp_path, "a.jsonl", without * 100 + GOOD), "'text'", "'body', 'labels'", "`text_column=")
    early = put(tmp_path, "b.jsonl", without * 99 + GOOD)
    assert len(read(early, max_bad_rows=99)) == 1


def test_a_tsv_without_header_is_recognised(tmp_path: Path) -> None:
    with raises(UserError, "a.tsv", ".txt") as caught:
        read(put(tmp_path, "a.tsv", f"1\tx\t{'word ' * 50}\n".encode()))
    assert len(str(caught.value).replace(str(tmp_path), "")) < 200


def test_unreadable_paths_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused(tmp_path / "a.csv")
    (tmp_path / "folder.csv").mkdir()
    refused(tmp_path / "folder.csv", "directory")
    endings = (".jsonl", ".ndjson", ".json", ".csv", ".tsv", ".txt", ".parquet", ".xmc", ".gz", ".bz2")
    refused(put(tmp_path, "a.xlsx", b"PK"), *endings)

    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    refused(tmp_path / "a.csv", "Permission denied")


@pytest.mark.parametrize("packed", PACK)
@pytest.mark.parametrize("kind", WRITERS)
def test_damaged_archives_are_reported(tmp_path: Path, kind: str, packed: str) -> None:
    content = PACK[packed](WRITERS[kind](DOCUMENTS))
    for broken in (content[:-20], b"plain text", content[:10] + b"\xff" * 20 + content[30:]):
        path = tmp_path / f"a{kind}{packed}"
        path.write_bytes(broken)
        refused(path)


def test_damaged_parquet_files_are_reported(tmp_path: Path) -> None:
    undecodable = as_parquet([Document("a", "MARK", [])]).replace(b"MARK", b"MAR\xff")
    for content in (b"not parquet at all", undecodable, as_parquet(DOCUMENTS)[:-30]):
        refused(put(tmp_path, "a.parquet", content))


HOSTILE = [  # as written in a file, and as read
    ("a.jsonl", b'{"id": "\\ud800", "text": "a\\ud83d b", "labels": ["\\udc00x"]}', ("\ufffd", "a\ufffd b", "\ufffdx")),
    ("a.jsonl", b'{"id": "1", "text": "\\ud83d\\ude00", "labels": ["x"]}', ("1", "\U0001f600", "x")),
    ("a.jsonl", b'{"id": "1", "text": "a\\u0000b", "labels": [" x\\u0000"]}', ("1", "a\ufffdb", "x\ufffd")),
    ("a.jsonl", b'{"id": "\x1b", "text": "a\x01b", "labels": ["\x1b[2Jx"]}', ("\ufffd", "a\x01b", "\ufffd[2Jx")),
    ("a.csv", b"id,text,labels\n1,a\0b,\x07x\n", ("1", "a\ufffdb", "\ufffdx")),
    ("a.txt", b"1\tx\0\ta\0b\n", ("1", "a\ufffdb", "x\ufffd")),
]


@pytest.mark.parametrize(("name", "content", "expected"), HOSTILE)
def test_surrogates_and_control_characters_are_replaced(
    tmp_path: Path, name: str, content: bytes, expected: tuple[str, str, str]
) -> None:
    id, text, label = expected
    path, bad = put(tmp_path, name, content + (b"\n" + GOOD if name == "a.jsonl" else b"")), BadRows()
    assert next(read_documents(path, Format(), bad)) == Document(id, text, [label])
    list(read_documents(path, Format(), bad))
    lines = bad.report(path)
    assert len(lines) == ("\ufffd" in id + text + label)
    for line in lines:
        assert_message(line, path, "U+FFFD in 1 document,")


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.jsonl")
    refused(tmp_path / "a.jsonl", "pipe")
    with raises(UserError, "a.jsonl", "pipe"):
        fingerprint(tmp_path / "a.jsonl")


@pytest.mark.parametrize("packed", ["", ".gz"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
@pytest.mark.parametrize("kind", [".jsonl", ".csv", ".tsv", ".txt"])
def test_other_encodings_are_named_with_the_fix(tmp_path: Path, kind: str, encoding: str, packed: str) -> None:
    text = WRITERS[kind]([Document("a", "Vögel " * 20, ["x"])]).decode().replace("\\u00f6", "ö")
    path = put(tmp_path, f"train{kind}{packed}", text.encode(encoding))
    refused(path, "UTF-8", "iconv", "LATIN1" if encoding == "latin-1" else encoding[:6].upper())


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    one, same, other = (put(tmp_path, name, name[:1].encode()) for name in ("a.txt", "a2.txt", "b.txt"))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
    with raises(UserError, tmp_path / "none"):
        fingerprint(tmp_path / "none")
