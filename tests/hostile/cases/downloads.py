"""Downloads from a local server that stalls, lies, redirects or never ends, and archives that climb or burst."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import hashlib
import io
import tarfile
import threading
import time
import zipfile
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
from scipy.sparse import csr_array, save_npz

from tests.hostile.case import EITHER, ERROR, WORKS, Bad, Box, Case, Result, lost_unless, silent_unless

ROWS = "2 3 2\n0 1:1.0\n1 2:1.0\n"
BLOCK = b"x" * (1 << 16)
MANY = 4 << 30  # bytes that a bomb unpacks to
DISK = 200 << 20  # bytes that a download may write here before the case calls it endless


def zip_of(entries: dict[str, bytes | str]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return out.getvalue()


def tar_of(entries: dict[str, bytes], change: Callable[[tarfile.TarInfo], None] = lambda member: None) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in entries.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            change(member)
            archive.addfile(member, io.BytesIO(content if member.isreg() else b""))
    return out.getvalue()


def matrix(rows: int = 2) -> bytes:
    out = io.BytesIO()
    save_npz(out, csr_array(np.eye(rows, 3)))
    return out.getvalue()


def pickled_matrix() -> bytes:
    from tests.hostile.cases.checkpoints import Command

    out = io.BytesIO()
    np.savez(out, data=np.array([Command()], dtype=object), format=np.array([b"csr"]), shape=np.array([1, 1]))
    return out.getvalue()


PECOS = {"X.trn.txt": b"a\nb\n", "Y.trn.npz": matrix(), "X.tst.txt": b"a\nb\n", "Y.tst.npz": matrix(),
         "output-items.txt": b"l0\nl1\nl2\n"}  # fmt: skip
GOOD_ZIP = zip_of({"x_train.txt": ROWS, "x_test.txt": ROWS})
LINES = bz2.compress(b"a b\tsome text\nc\tmore text\n")


def link_to(target: str) -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        if member.name.startswith("X.trn"):
            member.type, member.linkname, member.size = tarfile.SYMTYPE, target, 0

    return change


def special(kind: bytes) -> Callable[[tarfile.TarInfo], None]:
    def change(member: tarfile.TarInfo) -> None:
        if member.name.startswith("X.trn"):
            member.type, member.size = kind, 0

    return change


def bomb_zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for split in ("train", "test"):
            with archive.open(f"x_{split}.txt", "w", force_zip64=True) as file:
                for _ in range(MANY // len(BLOCK) // 4):
                    file.write(BLOCK)
    return out.getvalue()


def bomb_bz2() -> bytes:
    unit = bz2.compress(b"x" * (45 << 20))
    return unit * (MANY // (45 << 20))


def lying_zip() -> bytes:
    """The directory announces fewer bytes than the member unpacks to."""
    content = bytearray(GOOD_ZIP)
    place = content.rfind(b"PK\x01\x02")
    content[place + 24 : place + 28] = (1).to_bytes(4, "little")
    return bytes(content)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    asked: list[str]
    behavior: Callable[[Handler], None]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.close_connection = True
        with contextlib.suppress(OSError):
            type(self).behavior(self)

    def head(self, code: int = 200, **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def body(self, content: bytes, length: int | None = None, **headers: str) -> None:
        self.head(Content_Length=str(len(content) if length is None else length), **headers)
        self.wfile.write(content)

    def log_message(self, *args: Any) -> None:
        pass


def stall(self: Handler) -> None:
    self.head(Content_Length="1000")
    self.wfile.flush()
    time.sleep(60)


def stall_before_head(self: Handler) -> None:
    time.sleep(60)


def endless(self: Handler) -> None:
    self.head()
    while True:
        self.wfile.write(BLOCK)


def endless_headers(self: Handler) -> None:
    self.wfile.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        self.wfile.write(b"X-More: y\r\n")


def longer_than_said(self: Handler) -> None:
    self.body(GOOD_ZIP + b"x" * 1000, len(GOOD_ZIP))


def redirect(to: str) -> Callable[[Handler], None]:
    return lambda self: self.head(302, Location=to, Content_Length="0")


def redirect_to_itself(self: Handler) -> None:
    self.head(302, Location=self.path, Content_Length="0")


def growing(self: Handler) -> None:
    """Each answer breaks off a little later, so every try makes progress."""
    self.body(b"x" * (100 * len(self.asked)), 10**9)


def answer(content: bytes, **headers: str) -> Callable[[Handler], None]:
    return lambda self: self.body(content, **headers)


def status(code: int) -> Callable[[Handler], None]:
    return lambda self: self.head(code, Content_Length="0")


def raw(content: bytes) -> Callable[[Handler], None]:
    return lambda self: self.wfile.write(content) and None


def get(kind: str, behavior: Callable[[Handler], None], sha256: str | None = None) -> Callable[[], None]:
    """Fetch a corpus from a server that behaves so; its errors have to be a `DownloadError` of one line."""

    def body() -> None:
        from datamodules.corpora import download, sources
        from zoo.core.errors import UserError

        download.TIMEOUT_SECONDS = 1  # type: ignore[assignment]
        handler = type("Own", (Handler,), {"behavior": behavior, "asked": []})
        server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = getattr(sources, kind)(f"http://127.0.0.1:{server.server_port}/file", sha256)
        for name in ("downloads", "corpus"):
            Path(name).mkdir()
        try:
            sources.fetch([source], Path("downloads"), Path("corpus"))
        except download.DownloadError as error:
            raise UserError(str(error)) from error

    return body


def nothing_else(box: Box, result: Result) -> None:
    """After an error, nothing of the corpus or the download is left but what the next call can resume.

    A complete download that exceeds a limit stays: with a higher limit it need not be downloaded again.
    """
    if result.code == 0:
        lost_unless(list((box.folder / "corpus").glob("train.*")), "no training documents were written")
        for file in (box.folder / "corpus").iterdir():
            silent_unless(b"root:" not in gzip.decompress(file.read_bytes()), "the corpus holds a file of this machine")
    else:
        left = [path.name for path in (box.folder / "downloads").glob("*") if ".part" not in path.name]
        lost_unless(not left or "limits." in result.err, f"a broken download stays: {left}")


def https_downgrade(box: Box, result: Result) -> None:
    if "redirected" in result.out:
        raise Bad("security", result.out)


def downgrade() -> None:
    """A redirect from https to http has to be refused; asked of the opener, as there is no certificate here."""
    import urllib.request

    from datamodules.corpora import download

    handlers = [getattr(download, name) for name in dir(download)]
    own = [kind for kind in handlers if isinstance(kind, type) and issubclass(kind, urllib.request.HTTPRedirectHandler)]
    request = urllib.request.Request("https://example.org/a")
    for kind in own or [urllib.request.HTTPRedirectHandler]:
        try:
            followed = kind().redirect_request(request, io.BytesIO(), 302, "Found", {}, "http://example.org/a")
        except Exception:
            continue
        if followed is not None:
            print("redirected from https to http")


SERVERS: dict[str, tuple[str, Callable[[Handler], None], tuple[str, ...]]] = {
    "works": ("SparseZip", answer(GOOD_ZIP), WORKS),
    "lines-work": ("TextLines", answer(LINES), WORKS),
    "tar-works": ("PecosTar", answer(tar_of(PECOS)), WORKS),
    "stalls": ("SparseZip", stall, ERROR),
    "stalls-before-head": ("SparseZip", stall_before_head, ERROR),
    "endless": ("SparseZip", endless, ERROR),
    "endless-headers": ("SparseZip", endless_headers, ERROR),
    "announces-a-petabyte": ("SparseZip", lambda self: self.body(b"x" * 1000, 10**15), ERROR),
    "length-is-text": ("SparseZip", raw(b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n" + GOOD_ZIP), WORKS),
    "longer-than-said": ("SparseZip", longer_than_said, WORKS),
    "breaks-off-each-time": ("SparseZip", growing, ERROR),
    "not-http": ("SparseZip", raw(b"SSH-2.0-OpenSSH\r\n"), ERROR),
    "empty": ("SparseZip", answer(b""), ERROR),
    "chunked-broken": ("SparseZip", raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZZZ\r\n"), ERROR),
    "redirect-to-file": ("SparseZip", redirect("file:///etc/passwd"), ERROR),
    "redirect-to-ftp": ("SparseZip", redirect("ftp://127.0.0.1:9/x"), ERROR),
    "redirect-to-itself": ("SparseZip", redirect_to_itself, ERROR),
    "html": ("SparseZip", answer(b"<html>please log in</html>"), ERROR),
    "500": ("SparseZip", status(500), ERROR),
    "418-with-control-signs": ("SparseZip", raw(b"HTTP/1.1 418 tea\x1b[2J\r\nContent-Length: 0\r\n\r\n"), ERROR),
    "206-unasked": ("SparseZip", lambda self: self.head(206, Content_Range="bytes 5-9/10", Content_Length="0"), ERROR),
    "zip-climbs": ("SparseZip", answer(zip_of({"../../x_train.txt": ROWS, "x_test.txt": ROWS})), ERROR),
    "zip-absolute": ("SparseZip", answer(zip_of({"/x_train.txt": ROWS, "x_test.txt": ROWS})), ERROR),
    "zip-without-test": ("SparseZip", answer(zip_of({"x_train.txt": ROWS})), ERROR),
    "zip-truncated": ("SparseZip", answer(GOOD_ZIP[:-10]), ERROR),
    "zip-flipped": ("SparseZip", answer(GOOD_ZIP[:40] + b"\xff" * 8 + GOOD_ZIP[48:]), ERROR),
    "zip-lying-size": ("SparseZip", answer(lying_zip()), ERROR),
    "zip-of-nothing": ("SparseZip", answer(zip_of({"x_train.txt": "", "x_test.txt": ""})), EITHER),
    "zip-bomb": ("SparseZip", lambda self: self.body(bomb_zip()), ERROR),
    "bz2-bomb": ("TextLines", lambda self: self.body(bomb_bz2()), ERROR),
    "bz2-truncated": ("TextLines", answer(LINES[:-5]), ERROR),
    "tar-climbs": ("PecosTar", answer(tar_of({"../" + n: c for n, c in PECOS.items()})), ERROR),
    "tar-link-to-passwd": ("PecosTar", answer(tar_of(PECOS, link_to("/etc/passwd"))), ERROR),
    "tar-link-upwards": ("PecosTar", answer(tar_of(PECOS, link_to("../../../tiny.yaml"))), ERROR),
    "tar-with-pipe": ("PecosTar", answer(tar_of(PECOS, special(tarfile.FIFOTYPE))), ERROR),
    "tar-with-device": ("PecosTar", answer(tar_of(PECOS, special(tarfile.CHRTYPE))), ERROR),
    "tar-truncated": ("PecosTar", answer(tar_of(PECOS)[:-30]), ERROR),
    "tar-with-pickle": ("PecosTar", answer(tar_of(PECOS | {"Y.trn.npz": pickled_matrix()})), ERROR),
    "tar-matrix-of-other-size": ("PecosTar", answer(tar_of(PECOS | {"Y.trn.npz": matrix(3)})), ERROR),
}


def cases(seed: int) -> list[Case]:
    found = []
    for id, (kind, behavior, expect) in SERVERS.items():
        options = {"timeout": 30, "file_size": DISK}
        found.append(Case(id, get(kind, behavior), expect, check=nothing_else, options=options))
    wrong, right = hashlib.sha256(b"x").hexdigest(), hashlib.sha256(GOOD_ZIP).hexdigest()
    found += [
        Case("checksum-wrong", get("SparseZip", answer(GOOD_ZIP), wrong), ERROR, check=nothing_else),
        Case("checksum-right", get("SparseZip", answer(GOOD_ZIP), right), WORKS, check=nothing_else),
        Case("https-to-http", downgrade, WORKS, check=https_downgrade),
    ]
    return found
