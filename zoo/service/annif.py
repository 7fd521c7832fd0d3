"""The paths of Annif's REST API, so that its clients can use this service: one project, which is the model."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any
from urllib.parse import parse_qsl, quote, unquote

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from zoo.core.version import __version__
from zoo.service.options import MAX_K
from zoo.service.problems import RequestError
from zoo.service.tagging import Service

URN = "urn:label:"  # of labels whose names are not URIs themselves
IS_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:[^\s<>\"]+")
MAX_FIELDS = 16
FORM = {
    "type": "object",
    "required": ["text"],
    "properties": {
        "text": {"type": "string", "description": "input text"},
        "limit": {"type": "integer", "default": 10, "minimum": 0, "maximum": MAX_K},
        "threshold": {"type": "number", "default": 0.0, "minimum": 0.0, "maximum": 1.0},
    },
}
router = APIRouter(prefix="/v1", tags=["Annif"])
Limit = Annotated[int, Query(ge=0, le=MAX_K)]
Least = Annotated[float, Query(ge=0, le=1)]


class AnnifDocument(BaseModel):
    """A document of a batch."""

    text: str
    document_id: str | None = None


class AnnifDocuments(BaseModel):
    """A batch of documents."""

    documents: list[AnnifDocument]


class AnnifSubject(BaseModel):
    """A label by its URI."""

    uri: str
    label: str | None = None


class AnnifExample(BaseModel):
    """A document with its labels."""

    text: str
    subjects: list[AnnifSubject] = Field(default_factory=list)


@router.get("/")
def information() -> dict[str, str]:
    """Name and version of the service."""
    return {"title": "xmc-zoo", "version": __version__}


@router.get("/projects")
def projects(request: Request) -> dict[str, Any]:
    """The model as the only project."""
    return {"projects": [project_of(service_of(request))]}


@router.get("/projects/{project_id}")
def project(request: Request, project_id: str) -> dict[str, Any]:
    """The model as a project."""
    return project_of(service_of(request, project_id))


@router.post(
    "/projects/{project_id}/suggest",
    openapi_extra={"requestBody": {"content": {"application/x-www-form-urlencoded": {"schema": FORM}}}},
)
async def suggest_labels(request: Request, project_id: str) -> dict[str, Any]:
    """Labels of a text, which is sent as a form."""
    service = service_of(request, project_id)
    if not request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
        raise RequestError(415, "send the text as application/x-www-form-urlencoded")
    try:
        form = dict(parse_qsl((await request.body()).decode(), True, True, max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise RequestError(400, f"the body is not a form: {error}") from error
    if "text" not in form:
        raise RequestError(400, "the form has no field `text`")
    limit, threshold = number(form, "limit", 10, MAX_K), number(form, "threshold", 0.0, 1)
    (answer,) = await results(service, [form["text"]], int(limit), threshold)
    return answer


@router.post("/projects/{project_id}/suggest-batch")
async def suggest_batch(
    request: Request, project_id: str, batch: AnnifDocuments, limit: Limit = 10, threshold: Least = 0.0
) -> list[dict[str, Any]]:
    """Labels of several documents."""
    answers = await results(service_of(request, project_id), [one.text for one in batch.documents], limit, threshold)
    ids = (one.document_id for one in batch.documents)
    return [{**answer, "document_id": name} for name, answer in zip(ids, answers, strict=True)]


@router.post("/projects/{project_id}/learn", status_code=204)
async def learn_labels(request: Request, project_id: str, examples: list[AnnifExample]) -> Response:
    """Teach the model labels, if learning is on."""
    service = service_of(request, project_id)
    await service.learn([(one.text, [name_of(subject) for subject in one.subjects]) for one in examples])
    return Response(status_code=204)


async def results(service: Service, texts: list[str], limit: int, threshold: float) -> list[dict[str, Any]]:
    answers = await service.suggest(texts, max(limit, 1), threshold)
    return [{"results": [suggestion(tag) for tag in answer["labels"][:limit]]} for answer in answers]


def suggestion(tag: dict[str, Any]) -> dict[str, Any]:
    name = tag["label"]
    uri = name if IS_URI.fullmatch(name) else URN + quote(name, safe="")
    return {"uri": uri, "label": name, "notation": None, "score": tag["score"]}


def name_of(subject: AnnifSubject) -> str:
    """The label that a URI stands for."""
    return unquote(subject.uri.removeprefix(URN)) if subject.uri.startswith(URN) else subject.uri


def number(form: dict[str, str], key: str, default: float, highest: float) -> float:
    """A number of a form."""
    try:
        value = float(form.get(key, default))
    except ValueError:
        value = math.nan
    if not 0 <= value <= highest:
        raise RequestError(400, f"{key}={form[key][:40]!r} is not a number from 0 to {highest:g}")
    return value


def service_of(request: Request, project_id: str | None = None) -> Service:
    """The service, if the project is its model."""
    service: Service = request.app.state.service
    if project_id is not None and project_id != service.facts["name"]:
        raise RequestError(404, f"no project {project_id[:80]!r}; there is {service.facts['name']!r}")
    return service


def project_of(service: Service) -> dict[str, Any]:
    facts = service.facts
    return {
        "project_id": facts["name"],
        "name": facts["name"],
        "language": "und",  # undetermined, ISO 639
        "backend": {"backend_id": "xmc-zoo"},
        "is_trained": True,
        "modification_time": facts["modified"],
    }
