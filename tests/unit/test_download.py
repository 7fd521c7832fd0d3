"""Downloads: whole and right, or not there."""

from __future__ import annotations

import hashlib

import pytest

from datamodules import download as module
from datamodules.download import DownloadError, download
from tests.servers import names, serving

CONTENT = bytes(range(256)) * 4096  # 1 MB
SUM = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def server():
    with serving(CONTENT) as server:
        yield server


def test_a_file_comes_whole_and_alone(server, tmp_path):
    path = tmp_path / "new" / "file.zip"
    download(server.url(), path, SUM)
    assert path.read_bytes() == CONTENT
    assert names(path.parent) == ["file.zip"]
    assert server.asked == [None]


def test_a_transfer_that_breaks_off_goes_on_by_itself(server, tmp_path):
    server.cuts = [1000, 50_000]
    download(server.url(), tmp_path / "file.zip", SUM)
    assert server.asked == [None, "bytes=1000-", "bytes=51000-"]
    assert names(tmp_path) == ["file.zip"]


def test_the_next_call_goes_on_where_the_last_one_ended(server, tmp_path):
    path = tmp_path / "file.zip"
    server.cuts = [1000] + [0] * 10
    with pytest.raises(DownloadError, match=r"the connection broke off after 1,000 of 1,048,576 bytes$"):
        download(server.url(), path, SUM)
    assert not path.exists()
    assert names(tmp_path) == ["file.zip.part", "file.zip.part.tag"]
    server.cuts, server.asked = [], []
    download(server.url(), path, SUM)
    assert server.asked == ["bytes=1000-"]
    assert names(tmp_path) == ["file.zip"]
    assert path.read_bytes() == CONTENT


@pytest.mark.parametrize("shorter", [False, True])
def test_a_file_that_has_changed_begins_anew(server, tmp_path, shorter):
    path = tmp_path / "file.zip"
    server.cuts = [2000] + [0] * 10
    with pytest.raises(DownloadError):
        download(server.url(), path)
    server.content, server.cuts = (CONTENT[:500] if shorter else CONTENT[::-1]), []
    server.tag = server.tag if shorter else '"two"'
    download(server.url(), path)
    assert path.read_bytes() == server.content


@pytest.mark.parametrize(("tag", "ranges"), [("", True), ('"one"', False)])
def test_servers_that_cannot_go_on_send_all_again(server, tmp_path, tag, ranges):
    server.tag, server.ranges, server.cuts = tag, ranges, [70_000, 80_000]
    download(server.url(), tmp_path / "file.zip", SUM)
    assert names(tmp_path) == ["file.zip"]
    assert (tmp_path / "file.zip").read_bytes() == CONTENT


def test_without_a_mark_of_the_version_nothing_stays(server, tmp_path):
    server.tag, server.cuts = "", [1000] * 10
    with pytest.raises(DownloadError, match="broke off"):
        download(server.url(), tmp_path / "file.zip")
    assert names(tmp_path) == []


def test_a_wrong_checksum_leaves_nothing(server, tmp_path):
    with pytest.raises(DownloadError, match=r"not the file that was expected: its SHA-256 begins with \w{12}$"):
        download(server.url(), tmp_path / "file.zip", "0" * 64)
    assert names(tmp_path) == []


def test_what_is_missing_or_cannot_be_reached_is_told_in_one_line(server, tmp_path):
    with pytest.raises(DownloadError, match=r"^http://\S+/missing: the server answers 404 Not Found$"):
        download(server.url("missing"), tmp_path / "file.zip")
    server.server_close()
    with pytest.raises(DownloadError, match=r"cannot be reached: .*refused"):
        download("http://127.0.0.1:9/file.zip", tmp_path / "file.zip")
    assert names(tmp_path) == []


def test_a_server_that_falls_silent_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    server.cuts = [3000] + [0] * 10
    with pytest.raises(DownloadError, match="broke off after 3,000 of"):
        download(server.url("slow"), tmp_path / "file.zip")
    server.cuts = []
    download(server.url(), tmp_path / "file.zip", SUM)
    assert server.asked[-1] == "bytes=3000-"
