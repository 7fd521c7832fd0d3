"""Errors as JSON: problem details of RFC 9457."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

MAX_DETAIL = 400  # characters


class RequestError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        detail: what is wrong, and how to fix it.
        headers: further headers of the response.
    """

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.detail, self.headers = status, detail, dict(headers or {})

    def response(self) -> Response:
        content = {"type": "about:blank", "title": HTTPStatus(self.status).phrase, "status": self.status}
        body = json.dumps({**content, "detail": self.detail[:MAX_DETAIL]})
        return Response(body, self.status, self.headers, "application/problem+json")


def validation_problem(errors: Sequence[Mapping[str, Any]], status: int) -> RequestError:
    """Make a problem of the first of pydantic's errors."""
    first = errors[0]
    where = [str(part) for part in first["loc"] if part != "body"]
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    reason = str(first["msg"])
    if first["type"] == "json_invalid":
        where, reason = [], f"the body is not valid JSON: {first.get('ctx', {}).get('error', reason)}"
    return RequestError(status, f"{'.'.join(where)}: {reason}{more}" if where else f"{reason}{more}")
