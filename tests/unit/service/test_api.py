"""The API: answers, limits and errors."""

import json

import pytest

import zoo

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("httpx2", reason="the test client needs httpx2")
from fastapi.testclient import TestClient

from tests.support.served import application, learner, small_model

TEXTS = ["cod quota", "ban " * 20, "", "levy cod"]


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory):
    return small_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def client(ckpt):
    with TestClient(application(ckpt, max_chars=1000, max_texts=4, max_body=0.01), base_url="http://localhost") as one:
        yield one


def open_client(ckpt, **settings):
    return TestClient(application(ckpt, **settings), base_url="http://localhost")


def refused(response, status, *names):
    """Check the problem details of an answer."""
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert [name for name in names if name not in problem["detail"]] == [], problem
    return response


def test_suggestions_are_those_of_the_tagger(client, ckpt):
    answer = client.post("/v1/suggest", json={"text": TEXTS, "k": 3}).json()
    for found, tags in zip(answer["results"], zoo.load(ckpt).tag(TEXTS, k=3), strict=True):
        assert [tag["label"] for tag in found["labels"]] == [tag.label for tag in tags]
        assert [tag["score"] for tag in found["labels"]] == pytest.approx([tag.score for tag in tags], abs=1e-5)
    assert [found["known"] for found in answer["results"]] == [True, True, False, True]
    (alone,) = client.post("/v1/suggest", json={"text": TEXTS[0], "k": 3}).json()["results"]
    assert alone == answer["results"][0]


def test_thresholds_and_k(client):
    def labels(**settings):
        return client.post("/v1/suggest", json={"text": "cod", **settings}).json()["results"][0]["labels"]

    everything = labels(k=1000)
    assert len(everything) == 5
    middle = everything[2]["score"]
    assert labels(threshold=middle) == everything[:3]
    assert labels(threshold="auto") == [tag for tag in everything if tag["score"] >= 0.5]
    assert labels(k=1) == everything[:1]
    assert client.post("/v1/suggest", json={"text": []}).json() == {"results": []}


@pytest.mark.parametrize(
    ("body", "status", "names"),
    [
        ({}, 422, ["text"]),
        ({"text": 5}, 422, ["text"]),
        ({"text": ["cod", None]}, 422, ["text", "1"]),
        ({"text": "cod", "k": 0}, 422, ["k"]),
        ({"text": "cod", "k": 1001}, 422, ["k", "1000"]),
        ({"text": "cod", "threshold": 2}, 422, ["threshold"]),
        ({"text": "cod", "threshold": "low"}, 422, ["threshold"]),
        ({"text": "cod", "limit": 3}, 422, ["limit"]),
        ({"text": ["a"] * 5}, 413, ["5", "4"]),
        ({"text": ["a", "b" * 1001]}, 413, ["text 2", "1,001", "1,000"]),
        ({"text": "a" * 20_000}, 413, ["10,485"]),
        ({"text": "a" * 80_000}, 413, ["10,485"]),
    ],
)
def test_what_is_wrong_is_named(client, body, status, names):
    refused(client.post("/v1/suggest", json=body), status, *names)


def test_bodies_that_are_not_json(client):
    headers = {"Content-Type": "application/json"}
    refused(client.post("/v1/suggest", content=b'{"text": ', headers=headers), 422, "JSON")
    refused(client.post("/v1/suggest", content=b"\xff\xfe", headers=headers), 422)
    # A page of another site can send this without asking the browser
    refused(client.post("/v1/suggest", content=b'{"text": "cod"}', headers={"Content-Type": "text/plain"}), 422)
    refused(client.get("/v1/suggest"), 405)
    refused(client.get("/v1/nothing"), 404)


def test_a_body_without_a_length_has_the_limit_too(client):
    def parts(count):
        yield b'{"text": "'
        for _ in range(count):
            yield b"a" * 1000
        yield b'"}'

    headers = {"Content-Type": "application/json"}
    assert client.post("/v1/suggest", content=parts(1), headers=headers).status_code == 200
    refused(client.post("/v1/suggest", content=parts(20), headers=headers), 413, "10,485")
    refused(client.post("/v1/suggest", content=parts(100), headers=headers), 413, "10,485")


def test_too_many_requests(ckpt):
    with open_client(ckpt, max_requests=1) as client:
        gate = client.app.middleware_stack.app.app  # inside the error handlers
        while type(gate).__name__ != "Gate":
            gate = gate.app
        gate.in_progress = 1
        answer = refused(client.post("/v1/suggest", json={"text": "cod"}), 429, "1")
        assert answer.headers["retry-after"] == "1"
        assert client.get("/health").status_code == 200
        gate.in_progress = 0
        assert client.post("/v1/suggest", json={"text": "cod"}).status_code == 200


def test_labels_are_paged_and_searched(client):
    page = client.get("/v1/labels", params={"limit": 2, "offset": 1}).json()
    assert page == {"total": 5, "labels": [{"label": "l1", "documents": 7}, {"label": "l2", "documents": 5}]}
    assert client.get("/v1/labels", params={"search": "L4"}).json()["labels"] == [{"label": "l4", "documents": 2}]
    refused(client.get("/v1/labels", params={"limit": 0}), 422, "limit")


def test_facts_of_the_model(client, ckpt):
    facts = client.get("/v1/model").json()
    expected = {"name": "small", "heads": ["Linear"], "backbones": ["BiLSTM"], "labels": 5, "metrics": {}}
    assert {key: facts[key] for key in expected} == expected
    assert facts["limits"]["max_chars"] == 1000
    assert str(ckpt.parent) not in json.dumps(facts)
    assert client.get("/health").json() == {"status": "ok", "model": "small", "version": facts["version"]}


def test_metrics_and_licence_of_a_run(tmp_path):
    folder = tmp_path / "my run" / "time" / "checkpoints"
    folder.mkdir(parents=True)
    ckpt = small_model(folder)
    results = {"experiment": "my run", "data": "reuters", "metrics": {"P@1": 0.9, "P@5": 0.25, "loss": 3.0}}
    (folder.parent / "metrics.json").write_text(json.dumps(results))
    (folder / "README.md").write_text("---\nlicense: cc-by-4.0\ntags: [x]\n---\nlicense: not this one\n")
    with open_client(ckpt) as client:
        facts = client.get("/v1/model").json()
    assert facts["name"] == "my-run"
    assert facts["corpus"] == "reuters"
    assert facts["metrics"] == {"P@1": 0.9, "P@5": 0.25}
    assert facts["licence"] == "cc-by-4.0"


def test_counters(client):
    def value(name):
        lines = client.get("/metrics").text.splitlines()
        return next((float(line.rpartition(" ")[2]) for line in lines if line.startswith(name)), 0.0)

    good = 'zoo_requests_total{method="POST",path="/v1/suggest",status="200"}'
    before, texts = value(good), value("zoo_texts_total")
    client.post("/v1/suggest", json={"text": ["cod", "ban"]})
    client.request("MADE-UP", "/v1/made-up")
    assert value(good) == before + 1
    assert value("zoo_texts_total") == texts + 2
    assert value('zoo_requests_total{method="other",path="other",status="404"}') >= 1
    assert "made-up" not in client.get("/metrics").text.lower()
    assert "# TYPE zoo_request_seconds histogram" in client.get("/metrics").text


def test_only_those_with_the_token(ckpt):
    with open_client(ckpt, token="s3cret") as client:
        for path in ("/v1/labels", "/v1/projects", "/metrics"):
            answer = refused(client.get(path), 401, "token")
            assert answer.headers["www-authenticate"] == "Bearer"
            for wrong in ("Bearer", "Bearer s3cre", "Bearer s3cret2", "Basic s3cret", "Bearer \u00e9"):
                refused(client.get(path, headers={"Authorization": wrong.encode()}), 401)
            assert client.get(path, headers={"Authorization": "bearer s3cret"}).status_code == 200
        assert client.get("/health").status_code == client.get("/").status_code == 200
        assert client.get("/health", headers={"Host": "tags.example"}).status_code == 200


def test_a_name_that_someone_points_at_this_machine_is_refused(client):
    for host in ("evil.example", "evil.example:8000", "127.0.0.1.evil.example", ""):
        refused(client.get("/v1/labels", headers={"Host": host}), 421)
    for host in ("localhost:8000", "127.0.0.1:8000", "[::1]:8000", "127.0.0.5"):
        assert client.get("/v1/labels", headers={"Host": host}).status_code == 200


def test_pages_load_nothing_from_elsewhere(client):
    for path in ("/", "/docs"):
        page = client.get(path)
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "http" not in page.text
        assert " style=" not in page.text
        assert "<script>" not in page.text
    for name in ("page.js", "page.css", "texts.js", "docs.js", "docs.css", "icon.svg"):
        assert client.get(f"/page/{name}").status_code == 200
    for name in ("../app.py", "..%2Fapp.py", "%2e%2e/app.py"):
        assert client.get(f"/page/{name}").status_code == 404
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/v1/suggest", "/v1/labels", "/v1/model", "/v1/learn", "/health", "/metrics"} <= set(paths)


def test_learning_is_off_by_default(client):
    example = {"examples": [{"text": "cod", "labels": ["new"]}]}
    refused(client.post("/v1/learn", json=example), 403, "`learn`")


def test_a_model_learns_labels_and_keeps_them(tmp_path):
    ckpt = learner(tmp_path)
    with open_client(ckpt, learn=True) as client:
        assert client.get("/v1/model").json()["can_learn"]
        examples = [{"text": "cod ban", "labels": ["new one", "l3"]}, {"text": "ban", "labels": ["other"]}]
        assert client.post("/v1/learn", json={"examples": examples}).json() == {"added": 2, "labels": 7}
        found = client.post("/v1/suggest", json={"text": "cod ban", "k": 7}).json()["results"][0]["labels"]
        assert {"new one", "other"} <= {tag["label"] for tag in found}
        refused(client.post("/v1/learn", json={"examples": [{"text": "", "labels": ["x"]}]}), 422, "empty")
        refused(client.post("/v1/learn", json={"examples": []}), 422, "examples")
    assert zoo.load(ckpt).names[5:] == ["new one", "other"]


def test_a_head_that_cannot_learn_says_so(ckpt):
    with open_client(ckpt, learn=True) as client:
        assert not client.get("/v1/model").json()["can_learn"]
        refused(client.post("/v1/learn", json={"examples": [{"text": "cod", "labels": ["x"]}]}), 422, "Linear")
