"""Every format gives the same documents, and every broken file a message that says what to do."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from datamodules.errors import UserError
from datamodules.readers import BadRows, Document, Format, fingerprint, read_documents

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


def complaint(path: Path, format: Format | None = None) -> str:
    """The message of the UserError, without the folder."""
    with pytest.raises(UserError) as caught:
        read(path, format)
    message = str(caught.value)
    assert "\n" not in message
    return message.replace(f"{path.parent}/", "")


# --- what is read


@pytest.mark.parametrize("packed", ["", *PACK])
@pytest.mark.parametrize("kind", WRITERS)
def test_every_format_gives_the_same_documents(tmp_path: Path, kind: str, packed: str) -> None:
    path = put(tmp_path, f"train.v1{kind}{packed}", WRITERS[kind](DOCUMENTS))
    assert read(path) == DOCUMENTS


@pytest.mark.parametrize("packed", ["", *PACK])
@pytest.mark.parametrize("kind", WRITERS)
def test_progress_adds_up_to_the_file_size(tmp_path: Path, kind: str, packed: str) -> None:
    many = [Document(f"d{i}", f"text {i * i * 7919} " * 20, [f"l{i % 7}"]) for i in range(3_500)]
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
def test_an_empty_file_has_no_documents(tmp_path: Path, kind: str) -> None:
    assert read_bytes(tmp_path, f"train{kind}", b"") == []
    (tmp_path / f"train{kind}").write_bytes(b"")
    assert read(tmp_path / f"train{kind}") == []


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".parquet"])
def test_a_header_alone_has_no_documents(tmp_path: Path, kind: str) -> None:
    assert read_bytes(tmp_path, f"train{kind}", WRITERS[kind]([])) == []


def test_line_breaks_and_delimiters_within_quotes(tmp_path: Path) -> None:
    documents = [Document("a", "one\ntwo\r\nthree\rfour", ["x"]), Document("b", "tab\there, comma", ["y"])]
    assert read_bytes(tmp_path, "train.csv", WRITERS[".csv"](documents)) == documents
    assert read_bytes(tmp_path, "train.tsv", WRITERS[".tsv"](documents)) == documents


def test_txt_splits_at_the_first_two_tabs_only(tmp_path: Path) -> None:
    assert read_bytes(tmp_path, "a.txt", b"7\tx\tone\ttwo\t\n") == [Document("7", "one\ttwo\t", ["x"])]


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    assert read_bytes(tmp_path, "a.jsonl", b"\n  \r\n" + as_jsonl(DOCUMENTS) + b"\n") == DOCUMENTS
    assert read_bytes(tmp_path, "a.txt", b"\n" + as_txt(DOCUMENTS) + b"\r\n\n") == DOCUMENTS
    assert read_bytes(tmp_path, "a.csv", b"\r\n" + as_delimited(DOCUMENTS, ",") + b"\n\r\n") == DOCUMENTS


def test_no_line_break_at_the_end(tmp_path: Path) -> None:
    for kind in (".jsonl", ".csv", ".tsv", ".txt"):
        assert read_bytes(tmp_path, f"a{kind}", WRITERS[kind](DOCUMENTS[:2]).rstrip()) == DOCUMENTS[:2]


def test_a_csv_field_may_be_huge(tmp_path: Path) -> None:
    long = Document("a", "word " * 100_000, ["x"])
    assert read_bytes(tmp_path, "a.csv", as_delimited([long], ",")) == [long]


def test_columns_have_other_names(tmp_path: Path) -> None:
    content = b'{"key": 5, "body": "t", "topics": ["x"], "text": 1}\n'
    found = read_bytes(tmp_path, "a.jsonl", content, text_column="body", label_column="topics", id_column="key")
    assert found == [Document("5", "t", ["x"])]


def test_rows_without_id_are_numbered(tmp_path: Path) -> None:
    content = (
        b'\n{"text": "", "labels": []}\n{"id": "", "text": "", "labels": []}\n{"id": 0, "text": "", "labels": []}\n'
    )
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
LINE = st.text(st.characters(codec="utf-8", exclude_characters="\0\t\r\n"), max_size=40)
LABEL = st.text(st.characters(codec="utf-8", exclude_characters="\0\t\r\n,"), max_size=8).map(str.strip).filter(bool)


def documents(text: st.SearchStrategy[str], id: st.SearchStrategy[str]) -> st.SearchStrategy[list[Document]]:
    labels = st.lists(LABEL, max_size=4, unique=True)
    return st.lists(st.builds(Document, id.filter(bool), text, labels), max_size=5)


@settings(max_examples=40, deadline=None)
@given(anything=documents(TEXT, TEXT), lines=documents(LINE, LINE.filter(str.strip)))
def test_random_documents_survive(anything: list[Document], lines: list[Document]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for kind in (".jsonl", ".csv", ".tsv", ".parquet"):
            assert read_bytes(Path(folder), f"a{kind}", WRITERS[kind](anything)) == anything
        assert read_bytes(Path(folder), "a.txt", as_txt(lines)) == lines


# --- bad rows


GOOD = b'{"text": "t", "labels": ["x"]}\n'
NOT_A_LIST = "not a list (a string needs --data.label_sep)"
SURROGATE = "broken JSON: 'utf-8' codec can't encode character '\\ud800' in position 10: surrogates not allowed"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.jsonl", GOOD + b"oops", "broken JSON: Expecting value"),
        ("a.jsonl", GOOD + b'{"text": "t"', "broken JSON: Expecting ',' delimiter"),
        ("a.jsonl", GOOD + b'{"text": "\\ud800", "labels": []}', SURROGATE),
        ("a.jsonl", GOOD + b'["t"]', "not a JSON object"),
        ("a.jsonl", GOOD + b'{"text": "\xff", "labels": []}', "invalid UTF-8"),
        ("a.jsonl", GOOD + b'{"labels": []}', "no column 'text'"),
        ("a.jsonl", GOOD + b'{"text": "t"}', "no column 'labels'"),
        ("a.jsonl", GOOD + b'{"text": null, "labels": []}', "'text' is null, not a string"),
        ("a.jsonl", GOOD + b'{"text": 5, "labels": []}', "'text' is of type int, not a string"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": "x"}', f"'labels' is of type str, {NOT_A_LIST}"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": null}', f"'labels' is null, {NOT_A_LIST}"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": [{}]}', "a label is of type dict, not a string or an integer"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": [NaN]}', "a label is of type float, not a string or an integer"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": [true]}', "a label is of type bool, not a string or an integer"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": [["x"]]}', "a label is of type list, not a string or an integer"),
        ("a.jsonl", GOOD + b'{"text": "t", "labels": [null]}', "a label is null, not a string or an integer"),
        ("a.csv", b"text,labels\nt\nt,x\n", "1 fields instead of 2"),
        ("a.csv", b"text,labels\nt,x,y\nt,x\n", "3 fields instead of 2"),
        ("a.csv", b"text,labels\nt\0,x\nt,x\n", "NUL byte"),
        ("a.csv", b"text,labels\nt\xff,x\nt,x\n", "invalid UTF-8"),
        ("a.csv", b'text,labels\n"t" t,x\nt,x\n', "broken csv: ',' expected after '\"'"),
        ("a.csv", b'text,labels\n"t,x\nt,x\n', "broken csv: unexpected end of data"),
        ("a.tsv", b"text\tlabels\nt\tx\ty\nt\tx\n", "3 fields instead of 2"),
        ("a.txt", b"1\tx\tt\n2\tt\n", "fewer than 2 tabs; a line is id<TAB>labels<TAB>text"),
        ("a.txt", b"1\tx\tt\n2\tx\t\xe4\n", "invalid UTF-8"),
    ],
)
def test_bad_row(tmp_path: Path, name: str, content: bytes, reason: str) -> None:
    path = put(tmp_path, name, content)
    found = f"{name}: 1 bad row, at line 2 (line 2: {reason})"
    assert complaint(path) == f"{found}; fix them or allow some with --data.max_bad_rows=1"
    bad = BadRows(1)
    assert len(list(read_documents(path, Format(), bad))) == (0 if "end of data" in reason else 1)
    assert bad.report(path) == [f"{tmp_path}/{found}"]


def test_json_nested_too_deeply_is_a_bad_row(tmp_path: Path) -> None:
    found = complaint(put(tmp_path, "a.jsonl", GOOD + b"[" * 100_000))
    assert found.startswith("a.jsonl: 1 bad row, at line 2 (line 2: broken JSON: maximum recursion depth exceeded")


def test_bad_rows_of_parquet_are_counted_in_rows(tmp_path: Path) -> None:
    table = io.BytesIO()
    pq.write_table(pa.table({"text": ["t", None, "t"], "labels": [["x"], ["x"], None]}), table)
    assert complaint(put(tmp_path, "a.parquet", table.getvalue())) == (
        "a.parquet: 2 bad rows, at rows 2, 3 (row 2: 'text' is null, not a string)"
        "; fix them or allow some with --data.max_bad_rows=2"
    )


def test_all_bad_rows_are_counted_and_five_shown(tmp_path: Path) -> None:
    lines = [b"oops\n" if n in {3, 8, 9, 15, 20, 21, 30} else GOOD for n in range(1, 41)]
    assert complaint(put(tmp_path, "train.jsonl.gz", b"".join(lines))) == (
        "train.jsonl.gz: 7 bad rows, first at lines 3, 8, 9, 15, 20 (line 3: broken JSON: Expecting value)"
        "; fix them or allow some with --data.max_bad_rows=7"
    )


def test_a_csv_row_is_named_by_the_line_it_starts_on(tmp_path: Path) -> None:
    content = b'text,labels\n"one\ntwo",x\n\n"three\nfour",x,y\n'
    assert complaint(put(tmp_path, "a.csv", content)).startswith("a.csv: 1 bad row, at line 5 (line 5: 3 fields")


@pytest.mark.parametrize("header", [b"text,labels,labels", b"text,text,labels", b"id,text,labels,id"])
def test_a_column_that_is_there_twice_is_refused(tmp_path: Path, header: bytes) -> None:
    path = put(tmp_path, "a.csv", header + b"\na,b,c\n")
    with pytest.raises(UserError, match=r"the header has '\w+' more than once"):
        list(read_documents(path, Format(), BadRows()))


def test_bad_rows_are_tolerated_over_all_files_together(tmp_path: Path) -> None:
    one = put(tmp_path, "one.jsonl", b"oops\n" + GOOD)
    two = put(tmp_path, "two.jsonl", GOOD + b"oops\noops\n")
    good = put(tmp_path, "good.jsonl", GOOD)
    bad = BadRows(max_bad_rows=2)
    for _ in range(3):  # reading a file again does not count its rows again
        assert [d.id for d in read_documents(one, Format(), bad)] == [""]
    with pytest.raises(UserError, match=r"two\.jsonl: 2 bad rows, at lines 2, 3 .*--data\.max_bad_rows=3$"):
        list(read_documents(two, Format(), bad))
    assert len(list(read_documents(good, Format(), bad))) == 1
    assert [*bad.report(one), *bad.report(two), *bad.report(good)] == [
        f"{one}: 1 bad row, at line 1 (line 1: broken JSON: Expecting value)",
        f"{two}: 2 bad rows, at lines 2, 3 (line 2: broken JSON: Expecting value)",
    ]


# --- files that cannot be read


def test_missing_columns(tmp_path: Path) -> None:
    header = " (a {} needs a header row; only .txt has none)"
    for kind in (".csv", ".tsv"):
        path = put(tmp_path, f"a{kind}", WRITERS[kind](DOCUMENTS))
        expected = f"a{kind}: no column 'body' among 'id', 'labels', 'text'; set --data.text_column=..."
        assert complaint(path, Format(text_column="body")) == expected + header.format(kind)
    for kind in (".parquet", ".jsonl"):
        path = put(tmp_path, f"a{kind}", WRITERS[kind](DOCUMENTS))
        expected = f"a{kind}: no column 'tags' among 'id', 'text', 'labels'; set --data.label_column=..."
        assert complaint(path, Format(label_column="tags")) == expected


def test_a_json_column_is_missing_only_if_no_early_row_has_it(tmp_path: Path) -> None:
    without = b'{"body": "t", "labels": []}\n'
    late = put(tmp_path, "a.jsonl", without * 100 + GOOD)
    assert complaint(late) == "a.jsonl: no column 'text' among 'body', 'labels'; set --data.text_column=..."
    early = put(tmp_path, "b.jsonl", without * 99 + GOOD)
    assert len(read(early, max_bad_rows=99)) == 1


def test_a_headerless_tsv_is_told_apart(tmp_path: Path) -> None:
    found = complaint(put(tmp_path, "a.tsv", f"1\tx\t{'word ' * 50}\n".encode()))
    assert found.endswith("(a .tsv needs a header row; only .txt has none)")
    assert len(found) < 200


def test_places_without_a_file(tmp_path: Path) -> None:
    assert complaint(tmp_path / "a.csv") == "no such file: a.csv"
    (tmp_path / "folder.csv").mkdir()
    assert complaint(tmp_path / "folder.csv") == "folder.csv: cannot be read: Is a directory"
    assert complaint(put(tmp_path, "a.xlsx", b"PK")) == (
        "a.xlsx: unknown extension; supported are .jsonl, .ndjson, .json, .csv, .tsv, .txt, .parquet, .xmc"
        ", each also with .gz or .bz2"
    )


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)  # root may read everything
    assert complaint(tmp_path / "a.csv") == "a.csv: cannot be read: Permission denied"


@pytest.mark.parametrize("kind", WRITERS)
def test_corrupt_gzip(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a{kind}.gz"
    packed = gzip.compress(WRITERS[kind](DOCUMENTS))
    path.write_bytes(packed[:-20])
    ended = "Compressed file ended before the end-of-stream marker was reached"
    assert complaint(path) == f"a{kind}.gz: cannot be read: {ended}"
    path.write_bytes(b"plain text")
    assert complaint(path) == f"a{kind}.gz: cannot be read: Not a gzipped file (b'pl')"
    path.write_bytes(packed[:10] + b"\xff" * 20 + packed[30:])
    assert complaint(path).startswith(f"a{kind}.gz: cannot be read: Error -3 while decompressing data")


@pytest.mark.parametrize("kind", WRITERS)
def test_corrupt_bz2(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a{kind}.bz2"
    packed = bz2.compress(WRITERS[kind](DOCUMENTS))
    path.write_bytes(packed[:-20])
    ended = "Compressed file ended before the end-of-stream marker was reached"
    assert complaint(path) == f"a{kind}.bz2: cannot be read: {ended}"
    for broken in (b"plain text", packed[:30] + b"\xff" * 20 + packed[50:]):  # no such file, and a bad block
        path.write_bytes(broken)
        assert complaint(path) == f"a{kind}.bz2: cannot be read: Invalid data stream"


def test_corrupt_parquet(tmp_path: Path) -> None:
    assert complaint(put(tmp_path, "a.parquet", b"not parquet at all")).startswith("a.parquet: cannot be read: ")
    undecodable = as_parquet([Document("a", "MARK", [])]).replace(b"MARK", b"MAR\xff")
    assert complaint(put(tmp_path, "c.parquet", undecodable)).startswith("c.parquet: cannot be read: 'utf-8' codec")
    cut = as_parquet(DOCUMENTS)[:-30]
    assert complaint(put(tmp_path, "b.parquet", cut)).startswith("b.parquet: cannot be read: ")


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    one, same, other = (put(tmp_path, name, name[:1].encode()) for name in ("a.txt", "a2.txt", "b.txt"))
    assert fingerprint(one) == fingerprint(same) != fingerprint(other)
    with pytest.raises(UserError, match="no such file"):
        fingerprint(tmp_path / "none")
