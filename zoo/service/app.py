"""The web application: paths of the API, the page, and how errors are answered."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException
from starlette.routing import Route

from zoo.core.console import LOGGER
from zoo.core.version import __version__
from zoo.service import annif
from zoo.service.gate import Gate
from zoo.service.gauges import Gauges
from zoo.service.messages import Health, LabelPage, Learn, Learned, ModelFacts, Suggest, Suggestions
from zoo.service.options import ServiceOptions
from zoo.service.problems import RequestError, validation_problem
from zoo.service.tagging import Service

PAGE = Path(__file__).with_name("page")
ABOUT = "Labels for documents. Errors are problem details (RFC 9457). Times in metrics are in seconds."
TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus
MAX_LABELS = 10_000  # on a page of /v1/labels


def make_app(options: ServiceOptions) -> FastAPI:
    """Load the model, and make the application that serves it."""
    gauges = Gauges()
    service = Service(options, gauges)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with service.running():
            yield

    app = FastAPI(
        title="xmc-zoo",
        version=__version__,
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,  # its page loads scripts from the network; ours is static
        redoc_url=None,
    )
    app.state.service = service
    add_errors(app)
    add_api(app, service)
    app.include_router(annif.router)
    add_pages(app, gauges)
    paths = {route.path for route in app.routes if isinstance(route, Route) and "{" not in route.path}
    app.add_middleware(Gate, options=options, gauges=gauges, paths=paths)
    return app


def add_api(app: FastAPI, service: Service) -> None:
    @app.post("/v1/suggest", response_model=Suggestions, tags=["Labels"])
    async def suggest(asked: Suggest) -> Response:
        """Labels of one text, or of a list of texts. Requests that arrive together share a call of the model."""
        texts = [asked.text] if isinstance(asked.text, str) else asked.text
        return as_json({"results": await service.suggest(texts, asked.k, asked.threshold, asked.explain)})

    @app.get("/v1/labels", response_model=LabelPage, tags=["Labels"])
    def labels(
        search: Annotated[str, Query(max_length=1000)] = "",
        offset: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_LABELS)] = 100,
    ) -> Response:
        """Labels that the model knows, by decreasing number of training documents; `search` finds parts of names."""
        model, part = service.keeper.model, search.casefold()
        pairs = zip(model.names, model.counts, strict=True)
        found = [pair for pair in pairs if part in pair[0].casefold()]
        page = [{"label": name, "documents": count} for name, count in found[offset : offset + limit]]
        return as_json({"total": len(found), "labels": page})

    @app.get("/v1/model", response_model=ModelFacts, tags=["Service"])
    async def model() -> Response:
        """Facts of the model, its metrics and its licence, and the limits of requests."""
        return as_json(service.facts)

    @app.post("/v1/learn", response_model=Learned, tags=["Labels"])
    async def learn(asked: Learn) -> Response:
        """Teach the model labels from a few documents of each. Off unless the service is started with --learn."""
        return as_json(await service.learn([(one.text, one.labels) for one in asked.examples]))

    @app.get("/health", response_model=Health, tags=["Service"])
    async def health() -> Response:
        """Whether the service answers, and with which version of the model."""
        facts = service.keeper.model.facts
        return as_json({"status": "ok", "model": facts["name"], "version": facts["version"]})


def add_pages(app: FastAPI, gauges: Gauges) -> None:
    @app.get("/metrics", tags=["Service"], response_class=Response)
    def metrics() -> Response:
        """Counters and durations in the text format of Prometheus."""
        return Response(gauges.text(), media_type=TEXT_FORMAT)

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> FileResponse:
        return FileResponse(PAGE / "docs.html")

    app.mount("/page", StaticFiles(directory=PAGE))


def add_errors(app: FastAPI) -> None:
    """Answer all errors as problem details."""

    @app.exception_handler(RequestError)
    async def problem(request: Request, error: RequestError) -> Response:
        return error.response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        is_annif = request.url.path.startswith("/v1/projects")
        return validation_problem(error.errors(), 400 if is_annif else 422).response()

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        return RequestError(error.status_code, str(error.detail), error.headers).response()

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        LOGGER.error("%s failed", request.url.path, exc_info=error)
        return RequestError(500, "the service failed; its log has the details").response()


def as_json(content: Any) -> Response:
    """Answer with JSON that is not checked again."""
    return Response(json.dumps(content, ensure_ascii=False, allow_nan=False).encode(), media_type="application/json")
