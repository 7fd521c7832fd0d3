"""Corpora: encodings, control characters, broken and malicious compressed files, wrong columns, odd labels and ids."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import os
import threading
import zipfile
from collections.abc import Callable

import pyarrow as pa
import pyarrow.parquet as pq

from tests.hostile.case import EITHER, ERROR, WORKS, Box, Case, Result, Story, silent_unless

ROWS = [{"id": f"d{i}", "text": f"word{i % 3} more words {i}", "labels": [f"l{i % 3}", "all"]} for i in range(40)]


def jsonl(rows: list[dict] = ROWS, **changes: object) -> str:
    """Rows as JSON lines; `changes` replace fields of the second row."""
    rows = [row | changes if number == 1 else row for number, row in enumerate(rows)]
    return "".join(json.dumps(row) + "\n" for row in rows)


def with_line(line: str | bytes) -> bytes:
    return jsonl().encode() + (line.encode() if isinstance(line, str) else line) + b"\n"


GOOD = jsonl()
CSV = "id,text,labels\n" + "".join(f'd{i},"some, text {i}","a,b{i % 3}"\n' for i in range(40))
TXT = "".join(f"d{i}\ta,b{i % 3}\tsome text {i}\n" for i in range(40))
XMC = "40 5 3\n" + "".join(f"{i % 3} {i % 5}:1.5\n" for i in range(40))
PACKED = gzip.compress(GOOD.encode())
# A file, as it is named, and whether it can be trained on.
FILES: dict[str, tuple[str, str | bytes, tuple[str, ...]]] = {
    "jsonl": ("a.jsonl", GOOD, WORKS),
    "csv": ("a.csv", CSV, WORKS),
    "txt": ("a.txt", TXT, WORKS),
    "crlf": ("a.jsonl", GOOD.replace("\n", "\r\n"), WORKS),
    "bom": ("a.jsonl", b"\xef\xbb\xbf" + GOOD.encode(), WORKS),
    "gz": ("a.jsonl.gz", PACKED, WORKS),
    "gz-of-two-members": ("a.jsonl.gz", PACKED + PACKED, EITHER),
    "bz2": ("a.jsonl.bz2", bz2.compress(GOOD.encode()), WORKS),
    "empty": ("a.jsonl", "", ERROR),
    "only-nul": ("a.jsonl", b"\0" * 100, ERROR),
    "utf16": ("a.jsonl", GOOD.encode("utf-16"), ERROR),
    "latin1": ("a.jsonl", with_line(b'{"text": "\xe9", "labels": ["x"]}'), ERROR),
    "raw-surrogate": ("a.jsonl", with_line(b'{"text": "\xed\xa0\x80", "labels": ["x"]}'), ERROR),
    # Escaped surrogates are valid JSON, and one of them must not cost a corpus: they are replaced, with a note.
    "escaped-surrogate-text": ("a.jsonl", with_line('{"text": "\\ud800", "labels": ["x"]}'), WORKS),
    "escaped-surrogate-id": ("a.jsonl", with_line('{"id": "\\ud800", "text": "a", "labels": ["x"]}'), WORKS),
    "nul-in-text": ("a.jsonl", jsonl(text="a\0b"), WORKS),
    "nul-in-label": ("a.jsonl", jsonl(labels=["a\0b"]), WORKS),
    "controls-in-label": ("a.jsonl", jsonl(labels=["\x1b[2J\x07\r"]), WORKS),
    "bidi-label": ("a.jsonl", jsonl(labels=["\u202eabc"]), EITHER),
    "markup-label": ("a.jsonl", jsonl(labels=["[red]x[/]", "[/]", ":smile:"]), WORKS),
    "huge-line": ("a.jsonl", jsonl(text="word " * 2_000_000), EITHER),
    "huge-label": ("a.jsonl", jsonl(labels=["l" * 1_000_000]), EITHER),
    "many-labels-of-one": ("a.jsonl", jsonl(labels=[f"x{i}" for i in range(20_000)]), EITHER),
    "deep-json": ("a.jsonl", with_line("[" * 100_000 + "]" * 100_000), ERROR),
    "huge-number": ("a.jsonl", with_line('{"id": ' + "9" * 5000 + ', "text": "a", "labels": ["x"]}'), EITHER),
    "nan-id": ("a.jsonl", with_line('{"id": NaN, "text": "a", "labels": ["x"]}'), EITHER),
    "id-is-an-object": ("a.jsonl", with_line('{"id": {}, "text": "a", "labels": ["x"]}'), EITHER),
    "json-array-file": ("a.json", json.dumps(ROWS), ERROR),
    "text-is-a-number": ("a.jsonl", jsonl(text=3), ERROR),
    "labels-are-a-string": ("a.jsonl", jsonl(labels="a"), ERROR),
    "label-is-a-bool": ("a.jsonl", jsonl(labels=[True]), ERROR),
    "label-is-empty": ("a.jsonl", jsonl(labels=["", " "]), EITHER),
    "no-labels-at-all": ("a.jsonl", jsonl([row | {"labels": []} for row in ROWS]), ERROR),
    "no-text-at-all": ("a.jsonl", jsonl([row | {"text": ""} for row in ROWS]), EITHER),
    "one-document": ("a.jsonl", jsonl(ROWS[:1]), EITHER),
    "same-ids": ("a.jsonl", jsonl([row | {"id": "same"} for row in ROWS]), EITHER),
    "labels-in-html": ("a.jsonl", jsonl(labels=["<script>alert(1)</script>", "&amp;"]), WORKS),
    "labels-differ-in-case": ("a.jsonl", jsonl(labels=["L1", "l1", "ALL"]), WORKS),
    "label-like-a-path": ("a.jsonl", jsonl(labels=["../../x", "/etc/passwd"]), WORKS),
    "truncated-gz": ("a.jsonl.gz", PACKED[:-20], ERROR),
    "gz-with-wrong-checksum": ("a.jsonl.gz", PACKED[:-8] + b"\0" * 8, ERROR),
    "gz-with-trailing-rubbish": ("a.jsonl.gz", PACKED + b"rubbish", EITHER),
    "gz-that-is-text": ("a.jsonl.gz", GOOD, ERROR),
    "no-extension": ("a", GOOD, ERROR),
    "csv-with-two-text-columns": ("a.csv", CSV.replace("id,text", "text,text"), ERROR),
    "csv-with-open-quote": ("a.csv", CSV + 'd99,"never closed,a\n' * 3, ERROR),
    "csv-with-nul": ("a.csv", CSV + "d99,a\0b,c\n", WORKS),  # as in JSON
    "csv-with-latin1": ("a.csv", CSV.encode() + b"d99,caf\xe9,a\n", ERROR),
    "csv-of-old-macs": ("a.csv", CSV.replace("\n", "\r"), EITHER),
    "csv-with-formulas": ("a.csv", CSV + "d99,=cmd(),=1+1\n", WORKS),
    "txt-without-tabs": ("a.txt", "just text\n" * 40, ERROR),
    "parquet-that-is-text": ("a.parquet", GOOD, ERROR),
    "jsonl-that-is-html": ("a.jsonl", "<!DOCTYPE html>\n<html>404</html>\n", ERROR),
}
SPARSE: dict[str, tuple[str, tuple[str, ...]]] = {
    "fine": (XMC, WORKS),
    "no-header": (XMC.partition("\n")[2], ERROR),
    "header-too-large": (XMC.replace("40 5 3", "41 5 3"), ERROR),
    "header-huge": (XMC.replace("40 5 3", "40 99999999999999 99999999999999"), EITHER),
    "header-superscript": (XMC.replace("40 5 3", "4\u00b2 5 3"), ERROR),
    "label-out-of-range": (XMC.replace("2 2:1.5", "9 2:1.5"), ERROR),
    "feature-out-of-range": (XMC.replace(" 4:1.5", " 99:1.5"), ERROR),
    "value-nan": (XMC.replace("4:1.5", "4:nan"), ERROR),
    "value-overflows": (XMC.replace("4:1.5", "4:1e39"), EITHER),
    "value-with-underscore": (XMC.replace("4:1.5", "4:1_0"), EITHER),
    "repeated-feature": (XMC.replace("4:1.5", "4:1.5 4:1.5"), EITHER),
}


def finite(box: Box, result: Result) -> None:
    for file in box.folder.glob("**/metrics.json"):
        silent_unless("NaN" not in file.read_text(), "metrics.json reports NaN")


REPLACED = (
    *("escaped-surrogate-text", "escaped-surrogate-id", "nul-in-text", "nul-in-label", "controls-in-label"),
    "csv-with-nul",
)


def with_note(box: Box, result: Result) -> None:
    """Characters that cannot be kept are replaced, and the user is told."""
    finite(box, result)
    silent_unless("U+FFFD in 1 document" in result.err, "characters are replaced without a word")


def on_file(id: str, name: str, content: str | bytes, expect: tuple[str, ...]) -> list[Case]:
    """Train on a file, and check it."""
    train = ["fit", "--config=tiny.yaml", "--data=TextFiles", f"--data.train=own/{name}"]
    check = with_note if id in REPLACED else finite
    both = [Case(id, train, expect, {f"own/{name}": content}, check=check)]
    if expect != ERROR and len(content) < 1 << 20:  # what cannot be read fails in the same reader
        argv = ["data", "check", f"own/{name}"]
        both.append(Case(f"check-{id}", argv, EITHER, {f"own/{name}": content}, codes=(1,)))
    return both


def write_bomb(box: Box) -> None:
    """A gzip file of some MB that unpacks to 8 GB without a line break."""
    member = gzip.compress(b"a" * (64 << 20))
    with (box.folder / "bomb.jsonl.gz").open("wb") as file:
        file.writelines([member] * 128)


def write_parquet(name: str, **columns: list) -> Callable[[Box], None]:
    def setup(box: Box) -> None:
        pq.write_table(pa.table(columns), box.folder / name)

    return setup


def parquet_with_damage(box: Box) -> None:
    write_parquet("a.parquet", **{key: [row[key] for row in ROWS] for key in ("id", "text", "labels")})(box)
    content = bytearray((box.folder / "a.parquet").read_bytes())
    content[len(content) // 3 : len(content) // 3 + 40] = os.urandom(40)
    (box.folder / "a.parquet").write_bytes(content)


def changing(box: Box) -> str:
    """The file grows while it is read: the cache must not hold a mixture under the key of one content."""
    path = box.folder / "a.jsonl"
    path.write_text(GOOD * 500)
    stop = threading.Event()

    def grow() -> None:
        while not stop.wait(0.005):
            with path.open("a") as file:
                file.write('{"text": "late words", "labels": ["late"]}\n')

    writer = threading.Thread(target=grow, daemon=True)
    writer.start()
    try:
        first = box.judge(box.zoo("data", "stats", "a.jsonl"), EITHER)
    finally:
        stop.set()
        writer.join()
    return first


def shrinking(box: Box) -> str:
    path = box.folder / "a.jsonl"
    path.write_text(GOOD * 3000)
    timer = threading.Timer(0.2, lambda: path.write_text(""))
    timer.start()
    return box.judge(box.zoo("data", "stats", "a.jsonl"), EITHER)


def endless(box: Box) -> str:
    """A pipe without a writer, and a device without an end."""
    os.mkfifo(box.folder / "pipe.jsonl")
    return box.judge(box.zoo("data", "stats", "pipe.jsonl", timeout=10), EITHER)


def zip_file(entries: dict[str, str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, text in entries.items():
            archive.writestr(name, text)
    return out.getvalue()


def fit_on(*args: str) -> list[str]:
    return ["fit", "--config=tiny.yaml", "--final_test=false", "--data=TextFiles", *args]


def cases(seed: int) -> list[Case]:
    found = [case for id, row in FILES.items() for case in on_file(id, *row)]
    for id, (text, expect) in SPARSE.items():
        argv = ["fit", "--config=tiny.yaml", "--final_test=false", "--model.backbone=Bow", "--data=SparseFiles"]
        found.append(Case(f"sparse-{id}", [*argv, "--data.train=own/train.txt"], expect, {"own/train.txt": text}))
    own = {"a.jsonl": GOOD}
    found += [
        Case("gz-bomb", ["data", "stats", "bomb.jsonl.gz"], ERROR, setup=write_bomb, options={"timeout": 90}),
        Case("parquet-of-numbers", ["data", "stats", "a.parquet"], EITHER,
             setup=write_parquet("a.parquet", text=[1, 2], labels=[3, 4])),
        Case("parquet-of-bytes", ["data", "stats", "a.parquet"], EITHER,
             setup=write_parquet("a.parquet", text=[b"\xff", b"a"], labels=[["x"], ["y"]])),
        Case("parquet-of-nulls", ["data", "stats", "a.parquet"], EITHER,
             setup=write_parquet("a.parquet", text=[None, None], labels=[None, None])),
        Case("parquet-damaged", ["data", "stats", "a.parquet"], ERROR, setup=parquet_with_damage),
        Case("growing-file", Story(changing)),
        Case("shrinking-file", Story(shrinking)),
        Case("named-pipe", Story(endless)),
        Case("device-zero", ["data", "stats", "/dev/zero"], ERROR, options={"timeout": 20}),
        Case("folder-as-file", fit_on("--data.train=."), ERROR),
        Case("missing", fit_on("--data.train=no.jsonl"), ERROR),
        Case("same-file-twice", fit_on("--data.train=a.jsonl", "--data.val=a.jsonl"), EITHER, own),
        Case("empty-val", fit_on("--data.train=a.jsonl", "--data.val=v.jsonl"), ERROR, own | {"v.jsonl": ""}),
        Case("empty-test", ["fit", "--config=tiny.yaml", "--data=TextFiles", "--data.train=a.jsonl",
             "--data.test=t.jsonl"], EITHER, own | {"t.jsonl": ""}, check=finite),
        Case("val-of-other-labels", ["fit", "--config=tiny.yaml", "--data=TextFiles", "--data.train=a.jsonl",
             "--data.val=v.jsonl"], EITHER, own | {"v.jsonl": jsonl([{"text": "a", "labels": ["new"]}])}, check=finite),
        Case("wrong-text-column", fit_on("--data.train=a.jsonl", "--data.text_column=body"), ERROR, own),
        Case("same-columns", fit_on("--data.train=a.jsonl", "--data.text_column=labels"), ERROR, own),
        Case("empty-separator", fit_on("--data.train=a.csv", "--data.label_sep="), EITHER, {"a.csv": CSV}),
        Case("name-climbs", fit_on("--data.train=a.jsonl", "--data.name=../../../up"), EITHER, own),
        Case("name-absolute", fit_on("--data.train=a.jsonl", "--data.name=/up"), EITHER, own),
        Case("label-texts-broken", fit_on("--data.train=a.jsonl", "--data.label_texts=l.json"), ERROR,
             own | {"l.json": '{"l1": '}),
        Case("label-texts-circle", fit_on("--data.train=a.jsonl", "--data.label_texts=l.json"), EITHER,
             own | {"l.json": '{"l1": {"text": "a", "parents": ["l2"]}, "l2": {"text": "b", "parents": ["l1"]}}'}),
        Case("label-texts-deep", fit_on("--data.train=a.jsonl", "--data.label_texts=l.json"), EITHER,
             own | {"l.json": json.dumps({f"n{i}": {"text": "a", "parents": [f"n{i + 1}"]} for i in range(5000)})}),
        # U+FFFD in a description: the label keeps its name
        Case("label-texts-surrogate", fit_on("--data.train=a.jsonl", "--data.label_texts=l.json"), WORKS,
             own | {"l.json": '{"l1": "\\ud800"}'}),
        Case("vectors-broken", fit_on("--data.train=a.jsonl", "--data.vectors=v.txt"), ERROR,
             own | {"v.txt": "more 1 2 3\nwords 1 2\n"}),
        Case("vectors-nan", fit_on("--data.train=a.jsonl", "--data.vectors=v.txt", "--model.backbone.embed_dim=3"),
             ERROR, own | {"v.txt": "more nan 2 3\nwords inf 2 3\n"}),
        Case("vectors-empty", fit_on("--data.train=a.jsonl", "--data.vectors=v.txt"), ERROR, own | {"v.txt": ""}),
        Case("vectors-binary", fit_on("--data.train=a.jsonl", "--data.vectors=v.txt"), ERROR,
             own | {"v.txt": bytes(range(256)) * 40}),
        Case("hub-folder-with-script", ["fit", "--config=tiny.yaml", "--data=HubDataset", "--data.dataset=own"], ERROR,
             {"own/own.py": "open('canary', 'w')\n", "own/dataset_infos.json": "{}"}),
        Case("tokenizer-folder-with-code", fit_on("--data.train=a.jsonl", "--data.tokenizer=tok"), ERROR,
             own | {"tok/tokenizer_config.json": '{"auto_map": {"AutoTokenizer": ["evil.T", null]}}',
                    "tok/config.json": '{"model_type": "x", "auto_map": {"AutoConfig": "evil.C"}}',
                    "tok/evil.py": "open('canary', 'w')\n"}),
        Case("zip-as-corpus", ["data", "stats", "a.zip"], ERROR, {"a.zip": zip_file({"../x.jsonl": GOOD})}),
    ]  # fmt: skip
    return found
