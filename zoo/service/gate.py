"""What every request passes: who may ask, how much, and how many at once."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Collection
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from zoo.service.gauges import Gauges
from zoo.service.options import ServiceOptions, is_loopback
from zoo.service.problems import RequestError

BODY_SECONDS = 30  # in which a request must have arrived
READ_ANYWAY = 4  # times the limit: a client that is cut off while it sends does not see the answer
PROTECTED = ("/v1", "/metrics")  # need the token; the page and the description of the API do not
METHODS = {"GET", "POST", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"}
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Gate:
    """ASGI middleware: host names, the token, limits of size and concurrency, security headers, counters.

    Args:
        app: the application behind it.
        options: settings of the service.
        gauges: where requests are counted.
        paths: paths without parameters, by which requests are counted that do not get as far as a route.
    """

    def __init__(self, app: ASGIApp, options: ServiceOptions, gauges: Gauges, paths: Collection[str]) -> None:
        self.app, self.options, self.gauges, self.paths = app, options, gauges, paths
        self.token = options.token.encode()
        self.only_local = options.is_local and not options.token
        self.in_progress = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 500

        async def secured(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message).update(SECURITY)
            await send(message)

        self.in_progress += 1
        self.gauges.in_progress.inc()
        try:
            try:
                self.check(scope)
                body = await self.body(scope, receive)
            except RequestError as problem:
                await problem.response()(scope, receive, secured)
            else:
                await self.app(scope, body, secured)
        finally:
            self.in_progress -= 1
            self.gauges.in_progress.dec()
            route = self.path(scope)
            method = scope["method"] if scope["method"] in METHODS else "other"
            self.gauges.requests.labels(method, route, status).inc()
            if route.startswith("/v1"):
                self.gauges.seconds.labels(route).observe(time.perf_counter() - start)

    def check(self, scope: Scope) -> None:
        """Refuse a request by its head."""
        headers = Headers(scope=scope)
        if self.only_local and not is_loopback(host_name(headers.get("host", ""))):
            raise RequestError(421, "the service is for its own machine: open it as localhost, or set a token")
        if not scope["path"].startswith(PROTECTED):
            return
        if self.token:
            scheme, _, given = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), self.token):
                raise RequestError(401, "a bearer token is needed", {"WWW-Authenticate": "Bearer"})
        if scope["method"] == "POST" and self.in_progress > self.options.max_requests:
            detail = f"more than {self.options.max_requests} requests at once: try again later"
            raise RequestError(429, detail, {"Retry-After": "1"})

    async def body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the body of a request, up to the limit."""
        if scope["method"] not in ("POST", "PUT", "PATCH"):
            return receive
        limit = self.options.body_bytes
        too_large = RequestError(413, f"the body is larger than {limit:,} bytes", {"Connection": "close"})
        length = Headers(scope=scope).get("content-length", "0")
        if not length.isdecimal() or int(length) > READ_ANYWAY * limit:
            raise too_large
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while True:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise RequestError(400, "the client has gone")
                    size += len(message.get("body", b""))
                    if size > READ_ANYWAY * limit:
                        raise too_large
                    if size > limit:
                        parts.clear()
                    else:
                        parts.append(message.get("body", b""))
                    if not message.get("more_body"):
                        break
        except TimeoutError:
            detail = f"the body did not arrive in {BODY_SECONDS} seconds"
            raise RequestError(408, detail, {"Connection": "close"}) from None
        if size > limit:
            raise too_large
        whole: list[Message] = [{"type": "http.request", "body": b"".join(parts), "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        return replay

    def path(self, scope: Scope) -> str:
        """Path template of a request, for metrics; clients cannot make up new ones."""
        route: Any = scope.get("route")
        return getattr(route, "path", None) or (scope["path"] if scope["path"] in self.paths else "other")


def host_name(host: str) -> str:
    """Remove the port."""
    return host[: host.find("]") + 1] if host.startswith("[") else host.partition(":")[0]
