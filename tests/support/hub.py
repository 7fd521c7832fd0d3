"""A hub in memory: the part of the Hugging Face API that uploads and downloads of models need."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit


class Hub(ThreadingHTTPServer):
    """Repositories as lists of commits, each of which is a dictionary of files; `asked` are the requests."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.commits, self.branches, self.blobs, self.asked, self.private = {}, {}, {}, [], {}
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def files(self, name, revision="main"):
        """Files of a commit, and its id; None if there is no such revision."""
        commit = self.branches.get(name, {}).get(revision, revision)
        return (self.commits[name][commit], commit) if commit in self.commits.get(name, {}) else (None, commit)

    def commit(self, name, changes, branch="main"):
        files = {**(self.files(name, branch)[0] or {}), **changes}
        commit = hashlib.sha1(repr((name, len(self.commits.setdefault(name, {})))).encode()).hexdigest()
        self.commits[name][commit] = files
        self.branches.setdefault(name, {})[branch] = commit
        return commit


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, value=None, status=200, headers=(), body=None):
        body = json.dumps(value).encode() if body is None else body
        self.send_response(status)
        for name, text in dict(headers).items():
            self.send_header(name, text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def missing(self, code="RepoNotFound"):
        self.answer({"error": code}, 404, {"X-Error-Code": code})

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def route(self):
        parts = urlsplit(self.path)
        self.server.asked.append((self.command, unquote(parts.path)))
        return unquote(parts.path).strip("/").split("/"), parse_qs(parts.query)

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        path, _ = self.route()
        if path[:2] == ["api", "whoami-v2"]:
            return self.answer({"name": "me", "type": "user", "orgs": [], "auth": {"accessToken": {"role": "write"}}})
        if path[:2] == ["api", "models"]:
            name, rest = "/".join(path[2:4]), path[4:]
            if name not in self.server.commits:
                return self.missing()
            revision = "/".join(rest[1:]) if rest[:1] in (["revision"], ["tree"]) else "main"
            files, commit = self.server.files(name, revision)
            if files is None:
                return self.missing("RevisionNotFound")
            if rest[:1] == ["tree"]:
                return self.answer([{"type": "file", "path": file} | self.facts(files[file]) for file in files])
            siblings = [{"rfilename": file} | self.facts(files[file]) for file in files]
            return self.answer({"id": name, "sha": commit, "private": False, "siblings": siblings, "tags": []})
        if "resolve" in path:
            place = path.index("resolve")
            files, commit = self.server.files("/".join(path[:place]), path[place + 1])
            content = None if files is None else files.get("/".join(path[place + 2 :]))
            if content is None:
                return self.missing("EntryNotFound")
            headers = {"ETag": f'"{hashlib.sha256(content).hexdigest()}"', "X-Repo-Commit": commit}
            return self.answer(headers=headers, body=content)
        return self.missing()

    def facts(self, content):
        return {"size": len(content), "oid": hashlib.sha1(content).hexdigest()}

    def do_PUT(self):
        path, _ = self.route()
        self.server.blobs[path[-1]] = self.body()
        self.answer({})

    def do_POST(self):
        path, _ = self.route()
        body, server = self.body(), self.server
        if path == ["api", "repos", "create"]:
            wanted = json.loads(body)
            name = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
            if name in server.commits:
                return self.answer({"url": f"{server.url}/{name}"}, 409)
            server.commit(name, {})
            server.private[name] = bool(wanted.get("private") or wanted.get("visibility") == "private")
            return self.answer({"url": f"{server.url}/{name}", "name": name})
        if path == ["api", "validate-yaml"]:  # of the model card
            return self.answer({"errors": [], "warnings": []})
        if path[-3:] == ["info", "lfs", "objects"] or path[-1] == "batch":
            return self.lfs(json.loads(body))
        name = "/".join(path[2:4])
        if path[4] == "branch":
            server.branches[name]["/".join(path[5:])] = server.branches[name]["main"]
            return self.answer({})
        if path[4] == "preupload":
            mode = {True: "lfs", False: "regular"}
            asked = json.loads(body)["files"]
            kinds = [{"path": f["path"], "uploadMode": mode[f["path"].endswith(".safetensors")]} for f in asked]
            return self.answer({"files": [kind | {"shouldIgnore": False, "oid": None} for kind in kinds]})
        changes = {}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                changes[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                changes[line["value"]["path"]] = server.blobs[line["value"]["oid"]]
        commit = server.commit(name, changes, "/".join(path[5:]))
        return self.answer({"success": True, "commitUrl": f"{server.url}/{name}/commit/{commit}", "commitOid": commit})

    def lfs(self, asked):
        objects = [
            {"oid": one["oid"], "size": one["size"]}
            | {"actions": {"upload": {"href": f"{self.server.url}/blobs/{one['oid']}", "header": {}}}}
            for one in asked["objects"]
        ]
        self.answer({"transfer": "basic", "objects": objects})
