"""Downloads: complete and verified, or absent."""

import hashlib

import pytest

from datamodules.corpora import download as module
from datamodules.corpora.download import DownloadError, download
from tests.support.errors import raises
from tests.support.servers import names, serving

CONTENT = bytes(range(256)) * 4096  # 1 MB
SUM = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with serving(CONTENT) as server:
        yield server


def test_a_file_is_downloaded_completely(server, tmp_path):
    path = tmp_path / "new" / "file.zip"
    download(server.url(), path, SUM)
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["file.zip"]
    assert server.asked == [None]


def test_broken_transfers_are_resumed(server, tmp_path):
    server.cuts = [1000, 50_000]
    download(server.url(), tmp_path / "file.zip", SUM)
    assert server.asked == [None, "bytes=1000-", "bytes=51000-"]
    assert names(tmp_path) == ["file.zip"]


def test_the_next_call_resumes_a_partial_download(server, tmp_path):
    path = tmp_path / "file.zip"
    server.cuts = [1000] + [0] * 10
    with raises(DownloadError, "1,000", "1,048,576"):
        download(server.url(), path, SUM)
    assert not path.exists()
    assert names(tmp_path) == ["file.zip.part", "file.zip.part.tag"]
    server.cuts, server.asked = [], []
    download(server.url(), path, SUM)
    assert server.asked == ["bytes=1000-"]
    assert names(tmp_path) == ["file.zip"]
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("shorter", [False, True])
def test_changed_files_are_downloaded_from_the_start(server, tmp_path, shorter):
    path = tmp_path / "file.zip"
    server.cuts = [2000] + [0] * 10
    with raises(DownloadError, server.url(), "2,000"):
        download(server.url(), path)
    server.content, server.cuts = (CONTENT[:500] if shorter else CONTENT[::-1]), []
    server.tag = server.tag if shorter else '"two"'
    download(server.url(), path)
    assert path.read_bytes() == server.content


@pytest.mark.parametrize(("tag", "ranges"), [("", True), ('"one"', False)])
def test_servers_without_ranges_send_everything_again(server, tmp_path, tag, ranges):
    server.tag, server.ranges, server.cuts = tag, ranges, [70_000, 80_000]
    download(server.url(), tmp_path / "file.zip", SUM)
    assert names(tmp_path) == ["file.zip"]
    assert (tmp_path / "file.zip").read_bytes() == CONTENT


def test_partial_files_without_an_etag_are_removed(server, tmp_path):
    server.tag, server.cuts = "", [1000] * 10
    with raises(DownloadError, server.url(), "1,000"):
        download(server.url(), tmp_path / "file.zip")
    assert names(tmp_path) == []


def test_a_wrong_checksum_leaves_no_files(server, tmp_path):
    with raises(DownloadError, "SHA-256"):
        download(server.url(), tmp_path / "file.zip", "0" * 64)
    assert names(tmp_path) == []


def test_missing_files_and_servers_are_reported(server, tmp_path):
    with raises(DownloadError, "/missing", 404):
        download(server.url("missing"), tmp_path / "file.zip")
    server.server_close()
    with raises(DownloadError, "http://127.0.0.1:9/file.zip"):
        download("http://127.0.0.1:9/file.zip", tmp_path / "file.zip")
    assert names(tmp_path) == []


def test_silent_servers_time_out(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "TIMEOUT_SECONDS", 0.2)
    server.cuts = [3000] + [0] * 10
    with raises(DownloadError, "3,000"):
        download(server.url("slow"), tmp_path / "file.zip")
    server.cuts = []
    download(server.url(), tmp_path / "file.zip", SUM)
    assert server.asked[-1] == "bytes=3000-"
