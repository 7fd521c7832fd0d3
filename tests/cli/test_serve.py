"""`zoo serve` as a process: starts, answers, and stops without losing a request."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import contextmanager

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
from tests.support.processes import wait_until
from tests.support.served import small_model
from zoo.commands.serve import TOKEN, read_token

SECRET = "s3cret"


@contextmanager
def started(ckpt, *options, **environment):
    """A running service and its address."""
    command = [sys.executable, "-m", "zoo", "serve", f"--ckpt={ckpt}", "--port=0", *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environment})
    try:
        said = ""
        while not (found := re.search(r"http://127\.0\.0\.1:\d+/", said)):
            line = process.stderr.readline()
            assert line, said
            said += line
        yield process, found[0]
    finally:
        process.kill()
        process.communicate()


def ask(url, content=None, **headers):
    body = None if content is None else json.dumps(content).encode()
    given = {"Content-Type": "application/json", "Authorization": f"Bearer {SECRET}", **headers}
    request = urllib.request.Request(url, body, given)
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.parametrize("workers", [1, 2])
def test_sigterm_answers_requests_in_progress(tmp_path, workers):
    texts = {"text": ["cod quota levy ban " * 4000] * 64, "k": 3}
    environment = {TOKEN: SECRET, "OMP_NUM_THREADS": "1"}
    with started(small_model(tmp_path), f"--workers={workers}", **environment) as (process, url):
        assert ask(f"{url}health")["status"] == "ok"
        with pytest.raises(urllib.error.HTTPError) as refused:
            ask(f"{url}v1/labels", Authorization="Bearer wrong")
        assert refused.value.code == 401
        found, clients = [], []
        for _ in range(4):
            clients.append(threading.Thread(target=lambda: found.append(ask(f"{url}v1/suggest", texts))))
            clients[-1].start()
        wait_until(lambda: in_progress(url) == in_progress(url) == 5, 30)  # with that of the question itself
        process.send_signal(signal.SIGTERM)
        for client in clients:
            client.join()
        assert [len(answer["results"]) for answer in found] == [64] * 4
        assert process.wait(20) == 0
        with pytest.raises(urllib.error.URLError):
            ask(f"{url}health")


def in_progress(url):
    """Requests that have arrived and are not answered."""
    request = urllib.request.Request(f"{url}metrics", headers={"Authorization": f"Bearer {SECRET}"})
    with urllib.request.urlopen(request, timeout=60) as response:
        found = re.search(r"^zoo_requests_in_progress (\S+)", response.read().decode(), re.MULTILINE)
    time.sleep(0.05)  # the service counts down after it has answered
    return float(found[1])


def test_tokens(tmp_path, monkeypatch):
    monkeypatch.delenv(TOKEN, raising=False)
    assert read_token(None) == ""
    (tmp_path / "token").write_text("abc\n")
    assert read_token(str(tmp_path / "token")) == "abc"


def test_what_cannot_be_served(tmp_path, fails, monkeypatch):
    ckpt = small_model(tmp_path)
    fails("serve", "--ckpt", "missing.ckpt", "--port=0", names=["missing.ckpt"])
    fails("serve", f"--ckpt={ckpt}", "--port=99999", names=["--port=99999"])
    fails("serve", f"--ckpt={ckpt}", "--host=999.1.1.1", names=["--host=999.1.1.1"])
    fails("serve", f"--ckpt={ckpt}", "--host=0.0.0.0", "--learn", names=["--learn", "token"])
    fails("serve", f"--ckpt={ckpt}", "--token_file=missing", names=["--token_file=missing"])
    for token in ("", "two words", "é"):
        (tmp_path / "token").write_text(token)
        fails("serve", f"--ckpt={ckpt}", f"--token_file={tmp_path / 'token'}", names=["token"])
    monkeypatch.setitem(__import__("zoo.core.extras").core.extras.EXTRAS, "serve", ("no_such_library",))
    fails("serve", f"--ckpt={ckpt}", names=["no_such_library", "xmc-zoo[serve]"])
