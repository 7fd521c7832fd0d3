"""An HTTP server with ranges, ETags, broken connections and timeouts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Server(ThreadingHTTPServer):
    """Serves `files` by name, and `content` for other names; names with `missing` in them give 404.

    `cuts` are the numbers of bytes after which responses break off, and `tag` is the ETag. After a response to a name
    with `slow` in it, the server stops responding.
    """

    def __init__(self, content=b""):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files, self.content, self.tag, self.ranges = {}, content, '"one"', True
        self.cuts, self.asked, self.names = [], [], []
        self.wait = threading.Event()
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def url(self, name="file.zip"):
        return f"http://127.0.0.1:{self.server_port}/{name}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        wanted, server = self.headers.get("Range"), self.server
        name = urlsplit(self.path).path.removeprefix("/")
        server.asked.append(wanted)
        server.names.append(name)
        if "missing" in name:
            self.send_error(404)
            return
        content, start = server.files.get(name, server.content), 0
        if server.ranges and wanted and self.headers.get("If-Range") == server.tag:
            start = int(wanted.removeprefix("bytes=").removesuffix("-"))
        if start and start >= len(content):
            self.send_error(416)
            return
        self.send_response(206 if start else 200)
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        if server.tag:
            self.send_header("ETag", server.tag)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        body = content[start:]
        if server.cuts:
            body = body[: server.cuts.pop(0)]
            self.close_connection = True
        self.wfile.write(body)
        if "slow" in name:
            self.wfile.flush()
            server.wait.wait(5)
            self.close_connection = True

    def log_message(self, *args):
        pass


@contextmanager
def serving(content=b"") -> Iterator[Server]:
    server = Server(content)
    try:
        yield server
    finally:
        server.wait.set()
        server.shutdown()
        server.server_close()


def names(folder):
    """Names in a folder, including hidden files."""
    return sorted(path.name for path in folder.iterdir())
