"""`zoo predict` and the Python API: every document in is one row out, whatever the input, the streams and the ids."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Callable, Sequence

from tests.hostile.case import (
    EITHER,
    ERROR,
    WORKS,
    Bad,
    Box,
    Case,
    Check,
    Result,
    Story,
    lost_unless,
    silent_unless,
)

TEXTS = ["a document about fishery", "", "  ", "quota " * 3000, "the Baltic", "\u00fcber 😀 \u202e"]
JSONL = "".join(json.dumps({"id": f"d{i}", "text": text}) + "\n" for i, text in enumerate(TEXTS))
NEEDS = ("linear",)


def predict(*args: str) -> list[str]:
    return ["predict", "--ckpt=linear.ckpt", *args]


def to_file(source: str, *args: str) -> list[str]:
    return predict(f"--input={source}", "--out=tags.jsonl", *args)


def rows_with(ids: Sequence[object]) -> Check:
    """If it worked, the output has exactly these ids in order, with sound scores."""

    def check(box: Box, result: Result) -> None:
        if result.code != 0:
            lost_unless(not (box.folder / "tags.jsonl").exists(), "part of the output stays after an error")
            return
        rows = box.lines("tags.jsonl")
        found = [row["id"] for row in rows]
        lost_unless(len(found) == len(ids), f"{len(ids)} documents in, {len(found)} rows out")
        silent_unless(found == list(ids), f"ids {found[:5]} instead of {list(ids)[:5]}")
        for row in rows:
            scores = [tag["score"] for tag in row["labels"]]
            silent_unless(all(0 <= score <= 1 for score in scores), "a score is not a probability")
            silent_unless(scores == sorted(scores, reverse=True), "scores are not in order")

    return check


def out_is_untouched(box: Box, result: Result) -> None:
    """An error leaves the former output as it was."""
    if result.code != 0:
        lost_unless((box.folder / "tags.jsonl").read_text() == "before\n", "the former output was overwritten")


ALL = [f"d{i}" for i in range(len(TEXTS))]
# Input file, its content, ids that must come out (None: an error), further options.
INPUTS: dict[str, tuple[str, str | bytes, Sequence[object] | None]] = {
    "jsonl": ("in.jsonl", JSONL, ALL),
    "jsonl-bom": ("in.jsonl", b"\xef\xbb\xbf" + JSONL.encode(), ALL),
    "jsonl-blank-lines": ("in.jsonl", JSONL.replace("\n", "\n\n"), ALL),
    "gz": ("in.jsonl.gz", gzip.compress(JSONL.encode()), ALL),
    "gz-truncated": ("in.jsonl.gz", gzip.compress(JSONL.encode())[:-12], None),
    "gz-txt-truncated": ("in.txt.gz", gzip.compress(b"a text\n" * 5000)[:-12], None),
    "ids-0-and-empty": ("in.jsonl", '{"id": 0, "text": "a"}\n{"id": "", "text": "b"}\n{"id": null, "text": ""}', None),
    "same-ids": ("in.jsonl", '{"id": "x", "text": "a"}\n{"id": "x", "text": "b"}\n', ["x", "x"]),
    "ids-of-numbers": ("in.jsonl", '{"id": 7, "text": "a"}\n{"id": 8, "text": "b"}\n', [7, 8]),
    "truncated-json": ("in.jsonl", JSONL + '{"id": "x", "te', None),
    "text-is-a-number": ("in.jsonl", '{"text": 3}\n', None),
    "no-text": ("in.jsonl", '{"body": "a"}\n', None),
    "surrogate": ("in.jsonl", '{"id": "x", "text": "\\ud800"}\n', None),
    "surrogate-id": ("in.jsonl", '{"id": "\\ud800", "text": "a"}\n', None),
    "invalid-utf8": ("in.jsonl", b'{"id": "x", "text": "\xff"}\n', None),
    "utf16": ("in.jsonl", JSONL.encode("utf-16"), ALL),  # its mark tells
    "utf16-without-mark": ("in.jsonl", JSONL.encode("utf-16-le"), None),
    "deep": ("in.jsonl", '{"text": ' + "[" * 100_000, None),
    "empty": ("in.jsonl", "", []),
    "huge-text": ("in.jsonl", json.dumps({"id": "x", "text": "word " * 2_000_000}) + "\n", ["x"]),
    "csv": ("in.csv", "id,text\na,one\nb,\"two\nlines\"\n", ["a", "b"]),
    "csv-open-quote": ("in.csv", 'id,text\na,"one\n', None),
    "csv-wrong-columns": ("in.csv", "id,body\na,one\n", None),
    "parquet-that-is-none": ("in.parquet", "hello", None),
    "txt-with-form-feed": ("in.txt", "one\x0cstill one\ntwo\u2028still two\nthree\x85\n", [1, 2, 3]),
    "txt-with-old-mac-ends": ("in.txt", "one\rtwo\r", None),
    "txt-with-nul": ("in.txt", "a\0b\n", None),  # as in UTF-16 without a mark
    "txt-that-begins-like-json": ("in.txt", "{not json\nsecond\n", [1, 2]),
    "txt-json-then-text": ("in.txt", '{"id": "x", "text": "a"}\nplain\n', None),
    "unknown-extension": ("in.docx", b"PK\x03\x04\xff\xfe", None),
}  # fmt: skip
TASTE = {"ids-0-and-empty", "txt-with-old-mac-ends", "surrogate", "surrogate-id", "invalid-utf8", "unknown-extension",
         "empty", "csv-only-header", "gz-that-is-text"}  # fmt: skip
OPTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "k-0": ("--k=0", ERROR),
    "k-negative": ("--k=-1", ERROR),
    "k-many": ("--k=99999999", WORKS),
    "k-huge": ("--k=99999999999", ERROR),  # beyond the largest number of any setting
    "threshold-nan": ("--threshold=nan", ERROR),
    "threshold-inf": ("--threshold=inf", EITHER),
    "threshold-2": ("--threshold=2", EITHER),
    "threshold-tuned": ("--threshold=tuned", WORKS),
    "batch-size-0": ("--batch_size=0", ERROR),
    "batch-size-huge": ("--batch_size=9999999999", EITHER),
    "device-unknown": ("--device=tpu9", ERROR),
    "device-meta": ("--device=meta", ERROR),
    "device-cuda": ("--device=cuda", ERROR),
    "text-column-empty": ("--text_column=", ERROR),
    "id-column-is-text": ("--id_column=text", EITHER),
}


def api(function: Callable[[object], object]) -> Callable[[], object]:
    """A call with a loaded tagger."""

    def body() -> None:
        import zoo

        function(zoo.load("linear.ckpt", device="cpu"))

    return body


def must(true: object, why: str) -> None:
    if not true:
        raise AssertionError(why)


def generator_that_fails():
    yield "one"
    raise OSError("gone")


def add_twice(tagger) -> None:
    """A failed call leaves the model as it was."""
    before = [tag.label for tag in tagger.tag(["fishery"], k=99)[0]]
    try:
        tagger.add_labels([("a text", ["new"]), ("", ["other"])])
    except Exception:
        must(len(tagger.names) == len(set(tagger.names)), "labels repeat")
        must([tag.label for tag in tagger.tag(["fishery"], k=99)[0]] == before, "the model has changed")
        raise


API: dict[str, tuple[Callable[..., object], tuple[str, ...]]] = {
    "tag": (lambda tagger: must(len(tagger.tag(TEXTS)) == len(TEXTS), "a text is lost"), WORKS),
    "no-texts": (lambda tagger: must(tagger.tag([]) == [], "tags without texts"), WORKS),
    "one-string": (lambda tagger: tagger.tag("a text"), ERROR),
    "bytes": (lambda tagger: tagger.tag(b"a text"), ERROR),
    "list-of-bytes": (lambda tagger: tagger.tag([b"a text"]), ERROR),
    "list-of-numbers": (lambda tagger: tagger.tag([1, 2]), ERROR),
    "list-of-nan": (lambda tagger: tagger.tag(["a", float("nan")]), ERROR),
    "surrogate": (lambda tagger: tagger.tag(["a \ud800"]), EITHER),
    "nul": (lambda tagger: tagger.tag(["a \0 b"]), WORKS),
    "k-text": (lambda tagger: tagger.tag(["a"], k="3"), ERROR),
    "k-0": (lambda tagger: tagger.tag(["a"], k=0), ERROR),
    "threshold-nan": (lambda tagger: tagger.tag(["a"], threshold=float("nan")), ERROR),
    "batch-size-0": (lambda tagger: (setattr(tagger, "batch_size", 0), tagger.tag(["a"])), ERROR),
    "lone-stream": (lambda tagger: tagger.stream("a text"), EITHER),
    "save-to-folder": (lambda tagger: tagger.save("."), ERROR),
    "save-to-device": (lambda tagger: tagger.save("/dev/full"), ERROR),
    "add-mapping": (lambda tagger: tagger.add_labels({"a": "b"}), ERROR),
    "add-label-as-string": (lambda tagger: tagger.add_labels([("a text", "label")]), ERROR),
    "add-empty-label": (lambda tagger: tagger.add_labels([("a text", [""])]), ERROR),
    "add-known": (lambda tagger: tagger.add_labels([("a text", [tagger.names[0]])]), ERROR),
    "add-half": (add_twice, ERROR),
}  # fmt: skip
LOADS = {"none": None, "number": 3, "empty": "", "folder": ".", "bytes": b"linear.ckpt", "missing": "no.ckpt"}


def load_from(path: object) -> Callable[[], object]:
    def body() -> None:
        import zoo

        zoo.load(path)  # type: ignore[arg-type]

    return body


def failing_source() -> None:
    import zoo

    try:
        zoo.load("linear.ckpt").tag(generator_that_fails())
    except OSError:
        return
    raise AssertionError("the error of the source is swallowed")


def ten_thousand(box: Box) -> str:
    """Order and number hold over many windows."""
    box.write({"in.txt": "".join(f"document {i} {'word ' * (i % 50)}\n" for i in range(10_000))})
    found = box.judge(box.zoo(*to_file("in.txt", "--k=1")), WORKS)
    rows_with(range(1, 10_001))(box, Result(0, "", "", 0))
    return found


def reader_leaves(box: Box) -> str:
    """The reader of a pipe goes away: no traceback, and not exit code 0."""
    box.write({"in.txt": "a text\n" * 2000})
    result = box.zoo(*predict("--input=in.txt"), pipe_out=True)
    if result.has_traceback or "Exception ignored" in result.err:
        raise Bad("traceback", result.err.splitlines()[-1])
    silent_unless(result.code != 0, "exit code 0, though nobody has read the output")
    return box.judge(result, EITHER, codes=(1, 141, -13))


def full_output(box: Box) -> str:
    result = box.zoo(*predict("--input=in.jsonl", "--out=/dev/full"))
    return box.judge(result, ERROR)


def full_stdout(box: Box) -> str:
    """Standard output on a full disk, in a real interpreter."""
    script = "import sys; sys.stdout = open('/dev/full', 'w'); from zoo.commands.main import main; main(sys.argv[1:])"
    return box.judge(box.python("-c", script, *predict("--input=in.jsonl")), ERROR)


def as_ascii(box: Box) -> str:
    """A terminal that cannot show every letter of a label or an id."""
    box.write({"in.jsonl": json.dumps({"id": "\u00fc😀", "text": "a"}, ensure_ascii=False) + "\n"})
    result = box.python("-m", "zoo", *predict("--input=in.jsonl"), env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"})
    return box.judge(result, EITHER)


def same_file(box: Box) -> str:
    """The output is the input."""
    found = box.judge(box.zoo(*predict("--input=in.jsonl", "--out=in.jsonl")), EITHER)
    text = (box.folder / "in.jsonl").read_text()
    lost_unless(text == JSONL or text.count("\n") == len(TEXTS), "the input is gone")
    return found


def over_checkpoint(box: Box) -> str:
    """The output is the checkpoint."""
    before = (box.folder / "linear.ckpt").read_bytes()
    found = box.judge(box.zoo(*predict("--input=in.jsonl", "--out=linear.ckpt")), EITHER)
    lost_unless((box.folder / "linear.ckpt").read_bytes() == before, "the checkpoint was overwritten by predictions")
    return found


def through_link(box: Box) -> str:
    (box.folder / "real.jsonl").write_text("before\n")
    (box.folder / "tags.jsonl").symlink_to("real.jsonl")
    return box.judge(box.zoo(*to_file("in.jsonl")), EITHER)


def read_only(box: Box) -> str:
    """The output exists and the command fails in the middle: the old content stays."""
    box.write({"tags.jsonl": "before\n", "in.jsonl": JSONL + "{\n"})
    result = box.zoo(*to_file("in.jsonl"))
    found = box.judge(result, ERROR)
    out_is_untouched(box, result)
    return found


def on_a_full_disk(box: Box) -> str:
    box.write({"tags.jsonl": "before\n", "in.txt": "a text\n" * 3000})
    result = box.zoo(*to_file("in.txt"), file_size=50_000)
    found = box.judge(result, ERROR)
    out_is_untouched(box, result)
    lost_unless(not list(box.folder.glob(".tags*")), "a temporary file stays")
    return found


def named_pipe(box: Box) -> str:
    """Input from a named pipe, and output to one."""
    os.mkfifo(box.folder / "in.jsonl.pipe")
    if not os.fork():
        (box.folder / "in.jsonl.pipe").write_text(JSONL)
        os._exit(0)
    found = box.judge(box.zoo(*to_file("in.jsonl.pipe")), WORKS)
    os.wait()
    rows_with(ALL)(box, Result(0, "", "", 0))
    return found


def cases(seed: int) -> list[Case]:
    found = []
    for id, (name, content, ids) in INPUTS.items():
        expect = EITHER if id in TASTE else ERROR if ids is None else WORKS
        check = rows_with(ids) if ids is not None else rows_with([]) if expect == ERROR else None
        found.append(Case(id, to_file(name), expect, {name: content}, check=check))
    for id, (option, expect) in OPTIONS.items():
        found.append(Case(id, to_file("in.jsonl", option), expect, {"in.jsonl": JSONL}))
    for id, (function, expect) in API.items():
        found.append(Case(f"api-{id}", api(function), expect, needs=NEEDS))
    found += [Case(f"load-{id}", load_from(path), ERROR, needs=NEEDS) for id, path in LOADS.items()]
    own = {"in.jsonl": JSONL}
    lines = {"stdin": b'{"id": "a", "text": "b"}\n'}
    found += [
        Case("api-source-fails", failing_source, WORKS, needs=NEEDS),
        Case("stdin", predict("--input=-", "--out=tags.jsonl"), WORKS, options=lines, check=rows_with(["a"])),
        Case("stdin-empty", predict("--input=-", "--out=tags.jsonl"), EITHER),
        Case("stdin-broken", predict("--input=-", "--out=tags.jsonl"), ERROR,
             options={"stdin": b'{"id": "a", "text": "b"}\n{"id"'}, check=rows_with([])),
        Case("stdin-invalid-utf8", predict("--input=-", "--out=tags.jsonl"), EITHER, options={"stdin": b"\xff\xfe\n"}),
        Case("stdin-closed", predict("--input=-"), ERROR, options={"closed": (0,)}),
        Case("stdout-closed", predict("--input=in.jsonl"), ERROR, own, options={"closed": (1,)}),
        Case("stdout-closed-with-out", to_file("in.jsonl"), WORKS, own, options={"closed": (1,)}, check=rows_with(ALL)),
        Case("stderr-closed", to_file("in.jsonl"), WORKS, own, options={"closed": (2,)}, check=rows_with(ALL)),
        Case("all-closed", to_file("in.jsonl"), WORKS, own, options={"closed": (0, 1, 2)}, check=rows_with(ALL)),
        Case("missing", predict("--input=no.jsonl"), ERROR),
        Case("folder", predict("--input=."), ERROR),
        Case("device-full", Story(full_output), files=own, needs=NEEDS),
        Case("stdout-full", Story(full_stdout), files=own, needs=NEEDS),
        Case("out-is-a-folder", predict("--input=in.jsonl", "--out=."), ERROR, own),
        Case("out-in-missing-folder", predict("--input=in.jsonl", "--out=no/tags.jsonl"), ERROR, own),
        Case("out-in-proc", predict("--input=in.jsonl", "--out=/proc/tags.jsonl"), ERROR, own),
        Case("out-is-empty", predict("--input=in.jsonl", "--out="), ERROR, own),
        Case("ten-thousand", Story(ten_thousand), needs=NEEDS),
        Case("reader-leaves", Story(reader_leaves), needs=NEEDS),
        Case("ascii-terminal", Story(as_ascii), needs=NEEDS),
        Case("out-is-in", Story(same_file), files=own, needs=NEEDS),
        Case("out-is-the-checkpoint", Story(over_checkpoint), files=own, needs=NEEDS),
        Case("out-is-a-link", Story(through_link), files=own, needs=NEEDS),
        Case("error-in-the-middle", Story(read_only), needs=NEEDS),
        Case("full-disk", Story(on_a_full_disk), needs=NEEDS),
        Case("named-pipe", Story(named_pipe), needs=NEEDS),
        Case("svm", ["predict", "--ckpt=svm.ckpt", "--input=in.jsonl", "--out=tags.jsonl"], WORKS, own,
             check=rows_with(ALL)),
        Case("parabel", ["predict", "--ckpt=parabel.ckpt", "--input=in.jsonl", "--out=tags.jsonl"], WORKS, own,
             check=rows_with(ALL)),
        Case("tree", ["predict", "--ckpt=tree.ckpt", "--input=in.jsonl", "--out=tags.jsonl"], WORKS, own,
             check=rows_with(ALL)),
        Case("bert", ["predict", "--ckpt=bert.ckpt", "--input=in.jsonl", "--out=tags.jsonl"], WORKS, own,
             check=rows_with(ALL)),
    ]  # fmt: skip
    return found
