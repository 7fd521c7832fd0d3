"""Calibrated checkpoints, exports, and the service: what strangers send to it, and put into its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.hostile.case import EITHER, ERROR, WORKS, Box, Case, Result, Story, lost_unless, silent_unless
from tests.hostile.cases.checkpoints import DOCUMENTS, EVIL, FEW, PREDICT, Edit, edited, setting, tags_are_sound

Request = tuple[str, str, bytes, dict[str, str]]  # method, path, body and headers
NAN = float("nan")
CALIBRATION = {"method": "platt", "weights": [0.0, 1.0, 0.0, 0.0], "candidates": 10, "kind": "label"}
CALIBRATION |= {"target": "macro-f1", "steps": [[], []]}
AUTO = [*PREDICT, "--threshold=auto"]
CALIBRATIONS: dict[str, tuple[dict[str, Any] | object, tuple[str, ...]]] = {
    "works": ({}, WORKS),
    "is-text": ("platt", ERROR),
    "is-empty": ({"method": None}, ERROR),
    "method-unknown": ({"method": "magic"}, ERROR),
    "method-is-a-list": ({"method": ["platt"]}, ERROR),
    "kind-is-a-list": ({"kind": []}, ERROR),
    "weights-nan": ({"weights": [NAN, 1.0, 0.0, 0.0]}, ERROR),
    "weights-huge": ({"weights": [1e308, 1e308, 1e308, 1e308]}, EITHER),
    "weights-too-few": ({"weights": [1.0]}, ERROR),
    "weights-text": ({"weights": ["1", "1", "1", "1"]}, ERROR),
    "candidates-huge": ({"candidates": 2**60}, ERROR),
    "candidates-0": ({"candidates": 0}, ERROR),
    "cuts-nan": ({"cuts": {"global": [NAN]}}, ERROR),
    "cuts-too-few": ({"cuts": {"label": [0.5]}}, ERROR),
    "cuts-beyond-1": ({"cuts": {"class": [2.0, 2.0, 2.0]}}, ERROR),
    "cuts-none": ({"cuts": None}, ERROR),
    "isotonic-without-steps": ({"method": "isotonic"}, ERROR),
    "isotonic-descending": ({"method": "isotonic", "steps": [[1.0, 0.0], [0.1, 0.9]]}, ERROR),
    "isotonic-nan": ({"method": "isotonic", "steps": [[0.0, NAN], [0.1, 0.9]]}, ERROR),
    "isotonic-lengths": ({"method": "isotonic", "steps": [[0.0, 1.0], [0.1]]}, ERROR),
    "isotonic-beyond-1": ({"method": "isotonic", "steps": [[0.0, 1.0], [0.1, 7.0]]}, ERROR),
    "target-is-markup": ({"target": "[red]\x1b[2J"}, EITHER),
    "more-fields": ({"class_path": "os.system"}, ERROR),
}
CALIBRATES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "method-unknown": (["--method=magic"], ERROR),
    "target-unknown": (["--target=f1"], ERROR),
    "target-precision-2": (["--target=precision=2"], ERROR),
    "target-precision-nan": (["--target=precision=nan"], ERROR),
    "target-labels-0": (["--target=labels=0"], ERROR),
    "target-labels-huge": (["--target=labels=1e300"], EITHER),
    "candidates-0": (["--candidates=0"], ERROR),
    "seed-negative": (["--seed=-1"], ERROR),
    "out-is-a-folder": (["--out=."], ERROR),
    "out-elsewhere": (["--out=/proc/new.ckpt"], ERROR),
    "onto-itself": (["--out=linear.ckpt"], WORKS),
}
EXPORTS: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "out-exists": (["--out=."], ERROR),
    "out-elsewhere": (["--out=/proc/model"], ERROR),
    "out-below-a-file": (["--out=in.txt/model"], ERROR),
    "k-0": (["--k=0"], ERROR),
    "documents-0": (["--documents=0"], ERROR),
    "batch-size-negative": (["--batch_size=-1"], ERROR),
    "format-unknown": (["--format=tf"], ERROR),
    "int8-of-torch": (["--format=torch", "--int8"], ERROR),
    "input-missing": (["--input=no.jsonl"], ERROR),
    "input-broken": (["--input=broken.jsonl"], ERROR),
    "input-empty": (["--input=empty.jsonl"], ERROR),
}
SERVES: dict[str, tuple[list[str], tuple[str, ...]]] = {
    "port-huge": (["--port=99999"], ERROR),
    "port-text": (["--port=http"], ERROR),
    "workers-0": (["--workers=0"], ERROR),
    "workers-huge": (["--workers=100000"], ERROR),
    "host-unknown": (["--host=no.such.host.invalid"], ERROR),
    "wait-nan": (["--max_wait=nan"], ERROR),
    "body-0": (["--max_body=0"], ERROR),
    "body-nan": (["--max_body=nan"], ERROR),
    "learn-for-all": (["--host=0.0.0.0", "--learn"], ERROR),
    "token-missing": (["--token_file=no.txt"], ERROR),
    "token-empty": (["--token_file=empty.jsonl"], ERROR),
    "token-is-a-folder": (["--token_file=."], ERROR),
    "ckpt-missing": (["--ckpt=no.ckpt"], ERROR),
    "ckpt-is-text": (["--ckpt=in.txt"], ERROR),
}
FILES = {**DOCUMENTS, **FEW, "broken.jsonl": "{", "empty.jsonl": ""}
SMALL = {"max_chars": 1000, "max_texts": 4, "max_body": 0.01}  # limits of the service under attack
JSON = {"content-type": "application/json"}
# Requests that must be refused by a status below 500.
REQUESTS: dict[str, Request] = {
    "no-json": ("POST", "/v1/suggest", b"{", JSON),
    "no-body": ("POST", "/v1/suggest", b"", JSON),
    "deep": ("POST", "/v1/suggest", b"[" * 9000, JSON),
    "text-is-a-number": ("POST", "/v1/suggest", b'{"text": 3}', JSON),
    "text-is-null": ("POST", "/v1/suggest", b'{"text": null}', JSON),
    "text-too-long": ("POST", "/v1/suggest", json.dumps({"text": "a " * 2000}).encode(), JSON),
    "too-many-texts": ("POST", "/v1/suggest", json.dumps({"text": ["a"] * 9}).encode(), JSON),
    "k-0": ("POST", "/v1/suggest", b'{"text": "a", "k": 0}', JSON),
    "k-huge": ("POST", "/v1/suggest", b'{"text": "a", "k": 1000000000000}', JSON),
    "k-nan": ("POST", "/v1/suggest", b'{"text": "a", "k": NaN}', JSON),
    "threshold-2": ("POST", "/v1/suggest", b'{"text": "a", "threshold": 2}', JSON),
    "threshold-nan": ("POST", "/v1/suggest", b'{"text": "a", "threshold": NaN}', JSON),
    "unknown-key": ("POST", "/v1/suggest", b'{"text": "a", "ckpt": "/etc/passwd"}', JSON),
    "not-utf8": ("POST", "/v1/suggest", b'{"text": "\xff"}', JSON),
    "too-large": ("POST", "/v1/suggest", b'{"text": "' + b"a" * 20_000 + b'"}', JSON),
    "huge-length": ("POST", "/v1/suggest", b"{}", {**JSON, "content-length": "9" * 30}),
    "odd-length": ("POST", "/v1/suggest", b"{}", {**JSON, "content-length": "-1"}),
    "learn-when-off": ("POST", "/v1/learn", b'{"examples": [{"text": "a", "labels": ["b"]}]}', JSON),
    "wrong-method": ("DELETE", "/v1/labels", b"", {}),
    "offset-negative": ("GET", "/v1/labels?offset=-1", b"", {}),
    "limit-huge": ("GET", "/v1/labels?limit=999999999", b"", {}),
    "search-long": ("GET", "/v1/labels?search=" + "a" * 5000, b"", {}),
    "climbing-page": ("GET", "/page/..%2f..%2fapp.py", b"", {}),
    "climbing-page-twice": ("GET", "/page/%2e%2e/%2e%2e/app.py", b"", {}),
    "absolute-page": ("GET", "/page//etc/passwd", b"", {}),
    "nul-in-path": ("GET", "/page/%00", b"", {}),
    "foreign-host": ("POST", "/v1/suggest", b'{"text": "a"}', {**JSON, "host": "evil.example"}),
    "unknown-project": ("POST", "/v1/projects/%2e%2e/suggest", b"text=a", {}),
}  # fmt: skip
# Requests that must be answered.
ANSWERED: dict[str, Request] = {
    "plain": ("POST", "/v1/suggest", b'{"text": "a document", "k": 3}', JSON),
    "empty-text": ("POST", "/v1/suggest", b'{"text": ""}', JSON),
    "surrogate": ("POST", "/v1/suggest", b'{"text": "a \\ud800 b"}', JSON),
    "no-texts": ("POST", "/v1/suggest", b'{"text": []}', JSON),
    "nul": ("POST", "/v1/suggest", b'{"text": "a \\u0000 b"}', JSON),
    "explained": ("POST", "/v1/suggest", b'{"text": "a fishery quota", "explain": true}', JSON),
    "search-pattern": ("GET", "/v1/labels?search=%5B(.*%00", b"", {}),
    "same-key-twice": ("POST", "/v1/suggest", b'{"text": "a", "text": "b"}', JSON),
}


def calibration(changes: object) -> Edit:
    """Add a calibration to a checkpoint."""

    def edit(content: dict[str, Any]) -> None:
        labels = len(content["zoo"]["space"]["names"])
        cuts = {"global": [0.5], "class": [0.5, 0.5, 0.5], "label": [0.5] * labels}
        if isinstance(changes, dict):
            mine = changes.get("cuts", {})
            whole = CALIBRATION | changes | {"cuts": cuts | mine if isinstance(mine, dict) else mine}
            content["zoo"]["calibration"] = {key: value for key, value in whole.items() if value is not None}
        else:
            content["zoo"]["calibration"] = changes

    return edit


def asked(request: Request) -> Callable[[], None]:
    """Send a request to the service, within one process."""

    def body() -> None:
        from starlette.testclient import TestClient

        from zoo.service.app import make_app
        from zoo.service.options import ServiceOptions

        app = make_app(ServiceOptions("linear.ckpt", device="cpu", **SMALL))  # type: ignore[arg-type]
        method, path, content, headers = request
        with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
            answer = client.request(method, path, content=content, headers=headers)
            alive = client.get("/health")
        print(json.dumps({"status": answer.status_code, "text": answer.text[:2000], "alive": alive.status_code}))

    return body


def answered(request: Request, refused: bool) -> Story:
    def tell(box: Box) -> str:
        result = box.call(asked(request), timeout=120)
        found = box.judge(result, WORKS)
        answer = json.loads(result.out.splitlines()[-1])
        silent_unless(answer["alive"] == 200, "the service does not answer any more")
        if refused:
            silent_unless(400 <= answer["status"] < 500, f"status {answer['status']}: {answer['text'][:100]}")
            silent_unless("root:" not in answer["text"], "a file of the machine")
            silent_unless("import" not in answer["text"], "source code")
        else:
            silent_unless(answer["status"] == 200, f"status {answer['status']}: {answer['text'][:100]}")
            json.loads(answer["text"])
        return found

    return Story(tell)


def exports_whole_folders(box: Box, result: Result) -> None:
    left = [path.name for path in box.folder.iterdir() if path.name.startswith((".model", "model")) and path.is_dir()]
    lost_unless(not left, f"a part of the export stays: {left}")
    lost_unless((box.folder / "in.txt").read_text() == DOCUMENTS["in.txt"], "a file was overwritten")


def cases(seed: int) -> list[Case]:
    found = []
    for id, (changes, expect) in CALIBRATIONS.items():
        setup = edited("linear", calibration(changes))
        found.append(Case(f"calibration-{id}", AUTO, expect, FILES, setup, tags_are_sound, needs=("linear",)))
    for id, (options, expect) in CALIBRATES.items():
        argv = ["calibrate", "--ckpt=linear.ckpt", "--out=new.ckpt", *options]
        found.append(Case(f"calibrate-{id}", argv, expect, FILES))
    for id, (options, expect) in EXPORTS.items():
        argv = ["export", "--ckpt=linear.ckpt", "--out=model", *options]
        found.append(Case(f"export-{id}", argv, expect, FILES, check=exports_whole_folders))
    for id, (options, expect) in SERVES.items():
        argv = ["serve", "--ckpt=linear.ckpt", "--port=0", *options]
        found.append(Case(f"serve-{id}", argv, expect, FILES, options={"timeout": 40}))
    for verb, argv in {
        "calibrate": ["calibrate", "--ckpt=bad.ckpt", "--out=new.ckpt"],
        "export": ["export", "--ckpt=bad.ckpt", "--out=model"],
        "serve": ["serve", "--ckpt=bad.ckpt", "--port=0"],
    }.items():
        for id, evil in (("head", setting("model/head", EVIL)), ("backbone", setting("model/backbone", EVIL))):
            bad = edited("linear", evil)
            found.append(Case(f"{verb}-popen-as-{id}", argv, ERROR, FILES, bad, needs=("linear",)))
    for id, request in REQUESTS.items():
        found.append(Case(f"request-{id}", answered(request, True), needs=("linear",)))
    for id, request in ANSWERED.items():
        found.append(Case(f"answer-{id}", answered(request, False), needs=("linear",)))
    return found
