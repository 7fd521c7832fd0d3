"""A changed checkpoint replaces the model while requests go on."""

import os
import shutil
import threading
import time

import pytest

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("httpx2", reason="the test client needs httpx2")
from fastapi.testclient import TestClient

from tests.support.processes import wait_until
from tests.support.served import application, learner, small_model
from zoo.service.hosted import HostedModel


def labels(client):
    return client.get("/v1/model").json()["labels"]


def test_requests_go_on_while_a_new_version_is_loaded(tmp_path, monkeypatch):
    ckpt, new = small_model(tmp_path), learner(tmp_path)
    load = HostedModel.__init__

    def slowly(self, options):
        load(self, options)
        time.sleep(0.3)

    with TestClient(application(ckpt), base_url="http://localhost") as client:
        version = client.get("/health").json()["version"]
        monkeypatch.setattr(HostedModel, "__init__", slowly)
        found, done = [], threading.Event()

        def ask():
            while not done.is_set():
                found.append(client.post("/v1/suggest", json={"text": "cod"}).status_code)

        clients = [threading.Thread(target=ask) for _ in range(3)]
        for one in clients:
            one.start()
        os.replace(new, ckpt)
        wait_until(lambda: client.get("/health").json()["version"] != version, 20)
        done.set()
        for one in clients:
            one.join()
        assert client.get("/v1/model").json()["heads"] == ["PrototypeTransfer"]
        assert set(found) == {200}
        assert len(found) > 10
        assert 'zoo_model_reloads_total{result="loaded"} 1.0' in client.get("/metrics").text


def test_a_damaged_file_is_reported_and_the_old_model_stays(tmp_path, caplog):
    ckpt = small_model(tmp_path)
    whole = ckpt.read_bytes()
    with TestClient(application(ckpt), base_url="http://localhost") as client:
        ckpt.write_bytes(whole[: len(whole) // 2])
        wait_until(lambda: 'result="failed"} 1.0' in client.get("/metrics").text, 20)
        assert client.post("/v1/suggest", json={"text": "cod"}).status_code == 200
        ckpt.unlink()
        time.sleep(0.1)
        assert client.post("/v1/suggest", json={"text": "cod"}).status_code == 200
        shutil.copy(learner(tmp_path), ckpt)
        wait_until(lambda: client.get("/v1/model").json()["heads"] == ["PrototypeTransfer"], 20)
