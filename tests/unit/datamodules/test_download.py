"""Downloads: complete and verified, or absent."""

import hashlib
import json
import urllib.request

import pytest

from datamodules.corpora import download as module
from datamodules.corpora.download import DownloadError, download
from datamodules.corpora.sources import DownloadedFile, fetch
from datamodules.prepare.limits import Limits
from tests.support import servers
from tests.support.errors import raises
from tests.support.servers import names, serving
from zoo.core.errors import UserError

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


@pytest.fixture
def redirects(server, monkeypatch):
    """Make the server redirect names with `to-` to a URL."""
    targets = {}
    answer = servers.Handler.do_GET

    def redirect(handler):
        if (name := handler.path.removeprefix("/")) not in targets:
            return answer(handler)
        handler.send_response(302)
        handler.send_header("Location", targets[name])
        handler.send_header("Content-Length", "0")
        handler.end_headers()

    monkeypatch.setattr(servers.Handler, "do_GET", redirect)
    return targets


def test_redirects_stay_secure(server, redirects, tmp_path):
    redirects["to-http"] = server.url()
    download(server.url("to-http"), tmp_path / "file.zip", SUM)
    for scheme in ("file", "ftp"):
        redirects["to-other"] = f"{scheme}:///etc/hostname"
        with raises(DownloadError, server.url("to-other"), scheme):
            download(server.url("to-other"), tmp_path / "other.zip")
    request = urllib.request.Request("https://a.org/file")
    for target in ("http://a.org/file", "file:///etc/hostname", "ftp://a.org/file"):
        with raises(DownloadError, "https://a.org/file", target.partition(":")[0]):
            module.SecureRedirects().redirect_request(request, None, 302, "Found", {}, target)
    followed = module.SecureRedirects().redirect_request(request, None, 302, "Found", {}, "https://b.org/file")
    assert followed.full_url == "https://b.org/file"
    with raises(DownloadError, "file:///etc/hostname"):
        download("file:///etc/hostname", tmp_path / "local")
    assert names(tmp_path) == ["file.zip"]


def test_a_trickling_server_is_given_up(server, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "WINDOW_SECONDS", 0)
    monkeypatch.setattr(module, "SLOWEST", 10**15)
    with raises(DownloadError, server.url(), "slow"):
        download(server.url(), tmp_path / "file.zip")


@pytest.mark.parametrize("announced", [True, False])
def test_endless_downloads_are_stopped(server, tmp_path, monkeypatch, announced):
    if not announced:
        send = servers.Handler.send_header
        hide = lambda handler, name, value: None if name == "Content-Length" else send(handler, name, value)  # noqa: E731
        monkeypatch.setattr(servers.Handler, "send_header", hide)
        server.cuts = [len(CONTENT)]  # closes the connection at the end
    with raises(UserError, server.url(), "`limits.download_gb`"):
        download(server.url(), tmp_path / "file.zip", limits=Limits(download_gb=0.0005))
    assert not (tmp_path / "file.zip").exists()


def test_checksums_are_trusted_on_first_use_and_verified_after(server, tmp_path):
    class Copy(DownloadedFile):
        def unpack(self, downloads, folder, limits):
            if not self.path(downloads).read_bytes().startswith(CONTENT[:5]):
                raise ValueError("broken")

    source, downloads, known = Copy(server.url()), tmp_path / "downloads", tmp_path / "known_downloads.json"
    server.content = b"an error page"
    with raises(DownloadError, "broken"):
        fetch([source], downloads, tmp_path)
    assert not known.exists()  # what cannot be unpacked is not trusted
    server.content = CONTENT
    fetch([source], downloads, tmp_path)
    assert json.loads(known.read_text()) == {server.url(): SUM}
    source.discard(downloads)
    fetch([source], downloads, tmp_path)
    source.discard(downloads)
    server.content, server.tag = CONTENT[:9], '"two"'
    with raises(DownloadError, server.url(), SUM[:12], known):
        fetch([source], downloads, tmp_path)
    assert not source.path(downloads).exists()
    known.write_text("[")
    with raises(DownloadError, known, "JSON"):
        fetch([source], downloads, tmp_path)
    known.unlink()
    fetch([source], downloads, tmp_path)
