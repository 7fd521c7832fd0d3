"""Limits: oversized input ends in one line that names the setting, in little memory."""

import bz2
import gzip
import io
import tarfile
import tracemalloc
import zipfile

import pytest

from datamodules import TextFiles
from datamodules.corpora import sources
from datamodules.prepare import limits as module
from datamodules.prepare.limits import Limits
from datamodules.prepare.readers import BadRows, Format, read_documents
from tests.support.errors import assert_message, raises
from zoo.core.errors import UserError

SMALL = Limits(line_mb=0.001, text_mb=0.0002)
LONG = "w " * 1000
ROWS = {
    ".jsonl": '{{"id": "{}", "text": "{}", "labels": ["x"]}}\n',
    ".txt": "{}\tx\t{}\n",
    ".csv": '{},x,"{}"\n',
    ".xmc": "{} {}\n",
}
HEADERS = {".csv": "id,labels,text\n", ".xmc": "3 9 9\n"}


def put(folder, kind, middle):
    path = folder / f"train{kind}"
    text = [middle.replace("w", "1:1") if kind == ".xmc" else middle, "1:1"]
    path.write_text(HEADERS.get(kind, "") + "".join(ROWS[kind].format(i, text[i != 1]) for i in range(3)))
    return path


@pytest.mark.parametrize(("middle", "setting"), [(LONG, "`limits.line_mb`"), ("w " * 150, "`limits.text_mb`")])
@pytest.mark.parametrize("kind", ROWS)
def test_long_lines_and_texts_are_bad_rows(tmp_path, kind, middle, setting):
    path, bad = put(tmp_path, kind, middle), BadRows(1)
    if kind == ".xmc":
        setting = setting if middle == LONG else "`limits.text_mb`"
    assert len(list(read_documents(path, Format(limits=SMALL), bad))) == 2
    assert_message(bad.report(path)[0], path, "line 2" if kind in (".jsonl", ".txt") else "line 3", setting)
    with raises(UserError, path, setting, "`max_bad_rows=1`"):
        list(read_documents(path, Format(limits=SMALL), BadRows()))
    assert len(list(read_documents(path, Format(), BadRows()))) == 3


def test_a_quoted_field_of_many_short_lines_is_limited(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text('text,labels\n"' + "line\n" * 1000 + '",x\n')
    with raises(UserError, path, "`limits.line_mb`"):
        list(read_documents(path, Format(limits=SMALL), BadRows()))


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_decompression_bombs_are_refused_in_little_memory(tmp_path, suffix, pack):
    path = tmp_path / f"train.jsonl{suffix}"
    path.write_bytes(pack(bytes(90 * 10**6)))
    tracemalloc.start()
    with raises(UserError, path, "`limits.ratio`"):
        list(read_documents(path, Format(limits=Limits(line_mb=1)), BadRows()))
    assert tracemalloc.get_traced_memory()[1] < 16 * 10**6
    tracemalloc.stop()
    bad = BadRows(1)
    assert list(read_documents(path, Format(limits=Limits(line_mb=1, ratio=1e9)), bad)) == []
    assert bad.counts[path] == 1
    with raises(UserError, path, "`limits.unpacked_gb`"):
        list(read_documents(path, Format(limits=Limits(ratio=1e9, unpacked_gb=0.05)), BadRows()))


def test_archives_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RATIO_FROM", 10**6)
    content = bytes(2 * 10**6)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("train.txt", content)
        archive.writestr("test.txt", "")
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as archive:
        for name, size in (("train.txt", len(content)), ("test.txt", 0)):
            member = tarfile.TarInfo(name)
            member.size = size
            archive.addfile(member, io.BytesIO(content[:size]))
    too_small = {
        "ratio": {},
        "unpacked_gb": {"ratio": 1e9, "unpacked_gb": 0.001},
        "members": {"members": 1, "ratio": 1e9},
    }
    for name, settings in too_small.items():
        limits = Limits(**settings)
        with raises(UserError, "a.zip", f"`limits.{name}`"), zipfile.ZipFile(tmp_path / "a.zip") as archive:
            limits.check_zip(archive, "a.zip")
        with raises(UserError, "a.tar.gz", f"`limits.{name}`"):
            sources.unpack_tar(tmp_path / "a.tar.gz", tmp_path, ["train.txt"], limits)
    sources.unpack_tar(tmp_path / "a.tar.gz", tmp_path, ["train.txt"], Limits(ratio=1e9))
    assert (tmp_path / "train.txt").read_bytes() == content


def test_limits_of_rows_are_part_of_the_cache_key(tmp_path, clean_environment):
    path = put(tmp_path, ".jsonl", LONG)
    settings = {"train": str(path), "cache_dir": str(tmp_path / "cache"), "max_bad_rows": 1}
    assert TextFiles(**settings, limits=SMALL).space.reference_documents == 2
    assert TextFiles(**settings).space.reference_documents == 3
    other = TextFiles(**settings, limits=Limits(download_gb=1))
    assert other.prepared.folder == TextFiles(**settings).prepared.folder


def test_negative_limits_are_refused():
    with raises(UserError, "`limits.ratio=-1`"):
        Limits(ratio=-1)
