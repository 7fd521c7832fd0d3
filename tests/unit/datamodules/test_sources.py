"""Download sources: converted to a corpus, or one line that says why not and no leftover files."""

import bz2
import errno
import gzip
import json
import random
from concurrent.futures import ThreadPoolExecutor

import pytest

from datamodules import EurLex, EurLex4K, EurLex4KBow
from datamodules.base import CorpusMissingError
from datamodules.corpora import download
from datamodules.corpora import sources as archives
from datamodules.corpora.eurlex import SPLITS, ActsZip, act_of_hub
from datamodules.corpora.sources import HubRows, PecosTar, SparseZip, TextLines
from tests.support.errors import assert_message, raises
from tests.support.packed import LABELS, TEXTS, acts, damaged, lines, sparse_members, tar, zipped
from tests.support.servers import names, serving
from zoo.core.errors import UserError

pytestmark = pytest.mark.usefixtures("clean_environment")

KNOWN = ["known_downloads.json", "known_downloads.lock"]


@pytest.fixture
def server():
    with serving() as server:
        yield server


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Builds a corpus with these sources."""

    def make(*sources, kind=EurLex4K, **settings):
        monkeypatch.setattr(kind, "sources", sources)
        return kind(cache_dir=str(tmp_path / "cache"), **settings)

    return make


def left(tmp_path):
    """Files of the cache, without the lock."""
    cache = tmp_path / "cache"
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if path.suffix != ".lock")


def text_source(server, content=None, ids=True, **settings):
    """Both splits as text lines; `content` replaces that of test."""
    server.files = {"raw_train.txt.bz2": bz2.compress(lines(ids))}
    server.files["raw_test.txt.bz2"] = server.files["raw_train.txt.bz2"] if content is None else content
    urls = {split: server.url(f"raw_{split}.txt.bz2") for split in ("train", "test")}
    return tuple(TextLines(url, split=split, **settings) for split, url in urls.items())


def served(server, kind, content, name="file"):
    server.files = {name.partition("?")[0]: content}
    return (kind(server.url(name)),)


@pytest.mark.parametrize("ids", [True, False])
def test_text_lines_with_and_without_ids(server, made, tmp_path, ids):
    data = made(text_source(server, ids=ids))
    assert set(data.space.names) == {"0", "1", "2", "3", "4"}
    assert data.space.reference_documents == 40
    assert names(tmp_path / "cache" / "corpora") == ["eurlex-4k", *KNOWN]
    assert names(tmp_path / "cache" / "corpora" / "eurlex-4k") == ["test.jsonl.gz", "train.jsonl.gz"]
    with gzip.open(tmp_path / "cache" / "corpora" / "eurlex-4k" / "test.jsonl.gz", "rt", encoding="utf8") as file:
        rows = [json.loads(line) for line in file]
    assert [row["text"] for row in rows] == TEXTS
    assert [row["labels"] for row in rows] == [[str(i) for i in row] for row in LABELS]
    assert [row.get("id") for row in rows] == [f"d{i}" if ids else None for i in range(40)]
    server.shutdown()
    assert made(text_source(server)).space == data.space  # from the cache


def test_tabs_within_a_text_are_kept():
    rows = list(archives.text_rows([b"1 2\ta b\r\n", b"\n", b"3\tc\td\n", b"\t\n"]))
    assert [(row["labels"], row["text"]) for row in rows] == [(["1", "2"], "a b"), (["3"], "c\td"), ([], "")]


@pytest.mark.parametrize("repeated", [False, True])
def test_pecos_archives(server, made, tmp_path, repeated):
    change = {"output-items.txt": b"same\nsame\ntwo\nthree\nfour\n"} if repeated else {}
    data = made(served(server, PecosTar, tar(change)))
    assert set(data.space.names) == (set("01234") if repeated else {"zero", "one", "two", "three", "four"})
    assert data.targets("test").indptr.tolist() == list(range(0, 82, 2))
    assert names(tmp_path / "cache" / "corpora") == ["eurlex-4k", *KNOWN]


@pytest.mark.parametrize("files", [("Eurlex/eurlex_train.txt", "Eurlex/eurlex_test.txt"), ("train.txt", "test.txt")])
def test_zips_of_the_extreme_classification_repository(server, made, tmp_path, files):
    data = made(served(server, SparseZip, zipped(sparse_members(files)), "uc?export=download&id=1"), kind=EurLex4KBow)
    assert data.space.num_labels == 5
    assert names(tmp_path / "cache" / "corpora" / "eurlex-4k-bow") == ["test.xmc.gz", "train.xmc.gz"]
    (batch,) = data.test_dataloader()
    assert batch.values is not None


def test_eurlex57k_zip(server, made, tmp_path):
    data = made(served(server, ActsZip, acts()), kind=EurLex)
    assert data.space.names == ["100", "200"]
    with gzip.open(tmp_path / "cache" / "corpora" / "eurlex57k" / "val.jsonl.gz", "rt", encoding="utf8") as file:
        first = json.loads(next(file))
    text = "Title 0\nHeader ü\nWhereas\nArticle 1\nArticle 2"
    assert first == {"id": "0", "text": text, "labels": ["100", "200"]}


def test_rows_of_the_hub(server, made, monkeypatch):
    row = {"celex_id": "7", "title": "Title", "text": "Text", "eurovoc_concepts": ["100"]}
    monkeypatch.setattr("datasets.load_dataset", lambda name, revision: {"train": [row], "validation": [row]})
    data = made((HubRows("a/b", "main", act_of_hub, SPLITS, hub=server.url("")),), kind=EurLex)
    (document,) = data.corpus.sources["val"].read(lambda amount: None)
    assert (document.id, document.text, document.labels) == ("7", "Title\nText", ["100"])
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with raises(download.DownloadError, "/datasets/a/b", "HF_HUB_OFFLINE"):
        data.fetch(data.cache_dir / "other")


def test_the_next_source_replaces_a_missing_one(server, made, tmp_path):
    hub = HubRows("a/b", "main", act_of_hub, SPLITS, hub=server.url("missing"))
    data = made((hub,), (TextLines(server.url("missing.bz2")),), text_source(server))
    assert len(data.prepared.rows("test")) == 40
    assert server.names == ["missing", "missing.bz2", "raw_train.txt.bz2", "raw_test.txt.bz2"]
    assert names(tmp_path / "cache" / "corpora") == ["eurlex-4k", *KNOWN]


def test_concurrent_processes_download_once(server, made):
    source = text_source(server)
    pair = [made(source) for _ in range(2)]
    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(lambda data: data.find_corpus().sources["train"].path, pair))) == 1
    assert server.names == ["raw_train.txt.bz2", "raw_test.txt.bz2"]


BLOCKS = bz2.compress("".join(f"1\t{random.Random(i).random()}\n" for i in range(20_000)).encode(), 1)
ACTS = ("train.jsonl", "dev.jsonl", "test.jsonl")
PAGE = b"<!DOCTYPE html><title>Sign in</title>"
WRONG = {
    "lines cut short on the server": (TextLines, bz2.compress(lines())[:-20], "ended before the end-of-stream marker"),
    "lines with a broken block": (TextLines, damaged(BLOCKS, len(BLOCKS) - 2000), "Invalid data stream"),
    "a page instead of lines": (TextLines, PAGE, "Invalid data stream"),
    "no lines": (TextLines, bz2.compress(b""), "train"),
    "a line without a tab": (TextLines, bz2.compress(b"1\ta\nb\n"), "line 2"),
    "a tar cut short on the server": (PecosTar, tar()[:-200], "ended before the end-of-stream marker"),
    "a damaged tar": (PecosTar, damaged(tar(), 100), ""),
    "a page instead of a tar": (PecosTar, PAGE, "Not a gzipped file"),
    "a tar that climbs out": (PecosTar, tar(prefix="../"), "'../X.trn.txt'"),
    "a tar from the root": (PecosTar, tar(prefix="/etc/"), "'/etc/X.trn.txt'"),
    "a tar without labels": (PecosTar, tar({"Y.tst.npz": None}), "Y.tst.npz"),
    "a tar with broken labels": (PecosTar, tar({"Y.tst.npz": b"PK\3\4"}), ""),
    "a tar with too few texts": (PecosTar, tar({"X.tst.txt": b"a\n"}), ""),
    "a tar with too few names": (PecosTar, tar({"output-items.txt": b"a\n"}), "5"),
    "a zip cut short on the server": (ActsZip, acts()[:-40], "File is not a zip file"),
    "a damaged zip": (ActsZip, damaged(acts(), 60), ""),
    "a page instead of a zip": (ActsZip, PAGE, "File is not a zip file"),
    "a zip without a split": (ActsZip, acts(("train", "test")), "dev"),
    "a zip without a part": (ActsZip, zipped(dict.fromkeys(ACTS, "{}\n")), "title"),
    "a zip that climbs out": (SparseZip, zipped(sparse_members(("../train.txt", "test.txt"))), "'../train.txt'"),
    "a zip that climbs out of Windows": (SparseZip, zipped(sparse_members() | {"a\\..\\..\\x": ""}), ""),
    "a zip without training rows": (SparseZip, zipped(sparse_members(("x_test.txt",))), "['x_test']"),
}


@pytest.mark.parametrize("case", WRONG)
def test_broken_files_are_reported_and_removed(server, made, tmp_path, case):
    kind, content, reason = WRONG[case]
    with pytest.raises(CorpusMissingError) as caught:
        made(served(server, kind, content)).find_corpus()
    message = str(caught.value)
    assert_message(message, "eurlex-4k", server.url("file"), reason, EurLex4K.how_to_get)
    assert left(tmp_path) == ["corpora"]
    assert names(tmp_path) == ["cache"]  # and nothing beside it


def test_wrong_checksums_and_missing_files_leave_no_files(server, made, tmp_path):
    with raises(CorpusMissingError, "SHA-256"):
        made(text_source(server, sha256="0" * 64)).find_corpus()
    with raises(CorpusMissingError, "missing", 404):
        made((TextLines(server.url("missing")),)).find_corpus()
    assert left(tmp_path) == ["corpora"]


def test_partial_downloads_are_resumed_by_the_next_call(server, made, tmp_path):
    data = made(text_source(server))
    whole = len(server.files["raw_train.txt.bz2"])
    server.cuts = [whole, 100, *[0] * 10]  # all of the first file, and little of the second
    with raises(CorpusMissingError, "raw_test.txt.bz2", 100):
        data.find_corpus()
    download = "corpora/eurlex-4k.download"
    parts = [f"{download}/raw_test.txt.bz2.part{end}" for end in ("", ".tag")]
    assert left(tmp_path) == ["corpora", download, *parts, f"{download}/raw_train.txt.bz2"]
    server.cuts, server.names, server.asked = [], [], []
    assert data.find_corpus().name == "eurlex-4k"
    assert (server.names, server.asked) == (["raw_test.txt.bz2"], ["bytes=100-"])
    assert names(tmp_path / "cache" / "corpora") == ["eurlex-4k", *KNOWN]


@pytest.mark.parametrize("where", ["download", "write_split"])
def test_a_full_disk_is_reported(server, made, tmp_path, monkeypatch, where):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(archives, where, full)
    data = made(text_source(server), (TextLines(server.url("never asked")),), on_missing="sample")
    with raises(UserError, tmp_path / "cache"):
        _ = data.corpus
    assert "never asked" not in server.names
    asked = len(server.names)
    assert [name for name in left(tmp_path) if name.endswith((".part", ".jsonl.gz"))] == []
    monkeypatch.undo()
    made(text_source(server)).find_corpus()  # with what is there already
    assert len(server.names) - asked == (2 if where == "download" else 0)


def test_leftovers_of_killed_processes_are_removed(server, made, tmp_path):
    corpora = tmp_path / "cache" / "corpora"
    (corpora / ".eurlex-4k.1").mkdir(parents=True)
    (corpora / ".eurlex-4k-bow.1").mkdir()  # of another corpus, whose process may live
    made(text_source(server)).find_corpus()
    assert names(corpora) == [".eurlex-4k-bow.1", "eurlex-4k", *KNOWN]


def test_nothing_is_requested_without_download(server, made):
    data = made(text_source(server), download=False, on_missing="sample")
    assert data.is_sample
    assert server.names == []
