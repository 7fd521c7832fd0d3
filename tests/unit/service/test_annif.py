"""Annif's paths, with the requests that its clients send."""

import pytest

import zoo

pytest.importorskip("fastapi", reason="needs the extra `serve`")
pytest.importorskip("httpx2", reason="the test client needs httpx2")
from fastapi.testclient import TestClient

from tests.support.served import application, learner
from zoo.service.annif import AnnifSubject, name_of, suggestion


@pytest.fixture(scope="module")
def ckpt(tmp_path_factory):
    return learner(tmp_path_factory.mktemp("annif"))


@pytest.fixture(scope="module")
def client(ckpt):
    with TestClient(application(ckpt, learn=True), base_url="http://localhost") as one:
        yield one


def test_the_model_is_the_only_project(client):
    (project,) = client.get("/v1/projects").json()["projects"]
    assert project["project_id"] == "learner"
    assert {"name", "language", "backend", "is_trained", "modification_time"} < set(project)
    assert client.get("/v1/projects/learner").json() == project
    assert client.get("/v1/").json()["title"] == "xmc-zoo"
    missing = client.get("/v1/projects/other")
    assert missing.status_code == missing.json()["status"] == 404


def test_suggestions_for_a_form(client, ckpt):
    form = {"text": "cod & quota +ban", "limit": "2", "threshold": "0.0", "language": "en"}
    found = client.post("/v1/projects/learner/suggest", data=form).json()["results"]
    (tags,) = zoo.load(ckpt).tag([form["text"]], k=2)
    assert [one["label"] for one in found] == [tag.label for tag in tags]
    assert [one["score"] for one in found] == pytest.approx([tag.score for tag in tags], abs=1e-5)
    assert found[0]["uri"] == f"urn:label:{found[0]['label']}"
    assert client.post("/v1/projects/learner/suggest", data={"text": "cod", "limit": 0}).json() == {"results": []}
    assert len(client.post("/v1/projects/learner/suggest", data={"text": "cod"}).json()["results"]) >= 5
    assert client.post("/v1/projects/learner/suggest", data={"text": "cod", "threshold": 1}).json() == {"results": []}


@pytest.mark.parametrize(
    "form", [{}, {"text": "a", "limit": "x"}, {"text": "a", "threshold": 2}, {"text": "a", "limit": -1}]
)
def test_bad_forms(client, form):
    answer = client.post("/v1/projects/learner/suggest", data=form)
    assert answer.status_code == answer.json()["status"] == (400 if form else 415)


def test_a_batch_keeps_ids_and_order(client):
    documents = [{"text": "cod", "document_id": "a"}, {"text": "ban levy"}]
    found = client.post("/v1/projects/learner/suggest-batch?limit=2", json={"documents": documents}).json()
    assert [one["document_id"] for one in found] == ["a", None]
    assert all(len(one["results"]) == 2 for one in found)
    wrong = client.post("/v1/projects/learner/suggest-batch?limit=x", json={"documents": documents})
    assert wrong.status_code == 400


def test_learning(client):
    subjects = [{"uri": "http://example.org/subject1", "label": "Archaeology"}, {"uri": "urn:label:crude%20oil"}]
    answer = client.post("/v1/projects/learner/learn", json=[{"text": "cod levy", "subjects": subjects}])
    assert answer.status_code == 204
    found = client.post("/v1/projects/learner/suggest", data={"text": "cod levy", "limit": 100}).json()["results"]
    assert {"http://example.org/subject1", "urn:label:crude%20oil"} <= {one["uri"] for one in found}
    assert "crude oil" in {one["label"] for one in found}


@pytest.mark.parametrize("name", ["crude oil", "http://eurovoc.europa.eu/1309", "a:b c", "100%", "é/ö"])
def test_uris_stand_for_labels(name):
    uri = suggestion({"label": name, "score": 1.0})["uri"]
    assert " " not in uri
    assert name_of(AnnifSubject(uri=uri)) == name
