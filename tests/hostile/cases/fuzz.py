"""Thousands of mutations with a fixed seed, through library functions: success or `UserError`, nothing else."""

from __future__ import annotations

import io
import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.hostile.case import TINY, WORKS, Box, Case, Story
from tests.hostile.cases import downloads
from tests.hostile.cases.corpora import CSV, GOOD, TXT, XMC

SHOWN = 3
VALUES = ["null", "nan", "-1", "1e999", "[]", "{}", "''", "'\\0'", "!!binary aGk=", "2020-01-01", "0x10", "~", "*a",
          "&a 1", "[[1]]", "{a: {b: c}}", "9" * 400, "\u202e", "true", "on", "|\n  x", "? x"]  # fmt: skip
PIECES = [b"\0", b"\xff", b"\xef\xbb\xbf", b"\r", b"\n\n", b"\t", b'"', b"{", b"}", b"[", b":", b",", b"\\ud800",
          b"9" * 50, b"NaN", b"null", b"1e999", b"-", b"\x1b[2J", b"&", b"*", b"!!python/name:os.system",
          b"'", b"\xc3"]  # fmt: skip


def mutated(content: bytes, draw: random.Random) -> bytes:
    """Some bytes flipped, removed, repeated, or replaced by awkward pieces."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 5))):
        place, size = draw.randrange(len(data) + 1), draw.choice((1, 1, 4, 40))
        kind = draw.randrange(5)
        if kind == 0 and place < len(data):
            data[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            del data[place : place + size]
        elif kind == 2:
            data[place:place] = data[place : place + size] * draw.choice((1, 3))
        elif kind == 3:
            data[place : place + size] = draw.choice(PIECES)
        else:
            other = draw.randrange(len(data) + 1)
            data[place:place] = data[other : other + size]
    return bytes(data)


def mutated_yaml(content: bytes, draw: random.Random) -> bytes:
    """Mostly another value for a key, so that mutations get past the parser of YAML."""
    if draw.random() < 0.3:
        return mutated(content, draw)
    lines = content.decode().splitlines()
    for _ in range(draw.choice((1, 1, 3))):
        place = draw.randrange(len(lines))
        key, colon, value = lines[place].partition(":")
        kind = draw.randrange(4)
        if kind == 0 and colon:
            lines[place] = f"{key}: {draw.choice(VALUES)}"
        elif kind == 1:
            lines.insert(place, draw.choice(lines))
        elif kind == 2:
            lines[place] = lines[place].replace(draw.choice((":", ",", "}", " ")), draw.choice(("", "::", " ", "}")), 1)
        else:
            lines[place] = f"{draw.choice(VALUES)}:{value}"
    return "\n".join(lines).encode("utf8", "replace")


def fuzz(
    seed: int, number: int, samples: list[tuple[str, bytes]], use: Callable[[Path], object],
    mutate: Callable[[bytes, random.Random], bytes] = mutated,
) -> Callable[[], None]:  # fmt: skip
    """Use mutated files; everything but a `UserError` of one line is collected, and reported with its content."""

    def body() -> None:
        from zoo.core.errors import UserError

        draw, wrong = random.Random(seed), dict[str, tuple[str, bytes]]()
        for i in range(number):
            name, content = samples[i % len(samples)]
            changed = mutate(content, draw)
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder, name)
                path.write_bytes(changed)
                try:
                    use(path)
                except UserError as error:
                    if "\n" in str(error):
                        wrong.setdefault(f"several lines: {error}"[:200], (name, changed))
                except Exception as error:
                    wrong.setdefault(f"{type(error).__name__}: {error}"[:200], (name, changed))
        for message, (name, content) in list(wrong.items())[:SHOWN]:
            print(f"{name}: {message}\n  {content[-500:]!r}")
        if wrong:
            raise AssertionError(f"{len(wrong)} kinds of errors in {number:,} mutations: {next(iter(wrong))}")

    return body


def read_corpus(path: Path) -> None:
    from datamodules.prepare.readers import BadRows, Format, read_documents

    for document in read_documents(path, Format(), BadRows(10)):
        document.text.encode()
        "".join(document.labels).encode()


def prepare_corpus(path: Path) -> None:
    from datamodules.prepare.file_source import file_corpus
    from datamodules.prepare.preparation import Settings, prepare
    from datamodules.prepare.readers import Format

    prepared = prepare(file_corpus("fuzz", {"train": path}, Format(), 10), Settings(), path.parent / "cache")
    assert len(prepared.rows("train")) > 0


def read_sparse(path: Path) -> None:
    from datamodules.corpora.sparse_files import SparseFormat
    from datamodules.prepare.readers import BadRows, Format, read_documents

    list(read_documents(path, Format(), BadRows(10), reader=SparseFormat.beside(path).rows))


def read_labels(path: Path) -> None:
    from datamodules.prepare.label_texts import label_texts, read_labels

    label_texts(read_labels(path))


def predict_documents(path: Path) -> None:
    from zoo.commands.predict import documents

    for _, text in documents(str(path), "text", "id", 10_000):
        text.encode("utf8", "surrogatepass")  # those of JSON escapes are for the tokenizer


def resolve(path: Path) -> None:
    from zoo.commands.experiment import resolve_config

    (path.parent / "out").mkdir()
    resolve_config(str(path), path.parent / "out", {})


def parse_config(path: Path) -> None:
    """The whole parser of `zoo fit`, without making anything."""
    import contextlib

    from zoo.commands.main import main
    from zoo.core.errors import UserError

    sink = io.StringIO()
    try:
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            main(["fit", f"--config={path}", "--print_config"])
    except SystemExit as stop:
        if stop.code == 2:
            errors = [line for line in sink.getvalue().splitlines() if line.startswith("error: ")]
            assert len(errors) == 1, sink.getvalue()
            raise UserError(errors[0]) from None


def unpack(kind: str) -> Callable[[Path], None]:
    def use(path: Path) -> None:
        from datamodules.corpora import sources
        from datamodules.corpora.download import DownloadError
        from zoo.core.errors import UserError

        source = getattr(sources, kind)("http://127.0.0.1:9/file")
        (path.parent / "corpus").mkdir()
        try:
            with sources.download_errors(source.url):
                source.unpack(path.parent, path.parent / "corpus")
        except DownloadError as error:
            raise UserError(str(error)) from error

    return use


STAGES = (
    TINY.replace("  max_epochs: 1\n", "")
    + "stages:\n  - {name: a, epochs: 1}\n  - {name: b, epochs: 2}\nstages.b.epochs: 3\n"
)
LABELS = json.dumps({"l1": "a text", "l2": {"label": "b", "alt_labels": ["c"], "text": "d", "parents": ["l1"]}})
LABELS_CSV = "label,text,parents\nl1,a text,\nl2,more,l1;l3\n"
FUZZERS = {
    "yaml-experiments": (3000, [("a.yaml", TINY), ("a.yaml", STAGES)], resolve, mutated_yaml),
    "yaml-parser": (60, [("a.yaml", TINY), ("a.yaml", STAGES)], parse_config, mutated_yaml),
    "corpora": (4000, [("a.jsonl", GOOD), ("a.csv", CSV), ("a.tsv", CSV.replace(",", "\t")), ("a.txt", TXT)],
                read_corpus, mutated),
    "compressed": (1500, [("a.jsonl.gz", downloads.gzip.compress(GOOD.encode())),
                          ("a.jsonl.bz2", downloads.bz2.compress(GOOD.encode()))], read_corpus, mutated),
    "prepared": (300, [("a.jsonl", GOOD), ("a.csv", CSV)], prepare_corpus, mutated),
    "sparse": (2000, [("a.txt", XMC)], read_sparse, mutated),
    "label-texts": (2000, [("a.json", LABELS), ("a.csv", LABELS_CSV)], read_labels, mutated),
    "predict-input": (3000, [("a.jsonl", GOOD), ("a.csv", CSV), ("a.txt", TXT)], predict_documents, mutated),
    "zip": (1500, [("file", downloads.GOOD_ZIP)], unpack("SparseZip"), mutated),
    "bz2": (1500, [("file", downloads.LINES)], unpack("TextLines"), mutated),
    "tar": (600, [("file", downloads.tar_of(downloads.PECOS))], unpack("PecosTar"), mutated),
}  # fmt: skip


def story(seed: int, id: str) -> Story:
    number, samples, use, mutate = FUZZERS[id]
    contents = [(name, text if isinstance(text, bytes) else text.encode()) for name, text in samples]

    def tell(box: Box) -> str:
        return box.judge(box.call(fuzz(seed, number, contents, use, mutate), timeout=240), WORKS)

    return Story(tell)


def cases(seed: int) -> list[Case]:
    return [Case(id, story(seed, id)) for id in FUZZERS]
