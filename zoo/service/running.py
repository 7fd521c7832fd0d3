"""Run the service with uvicorn, in one process or in several workers."""

from __future__ import annotations

import os
import signal
import socket
import tempfile
from functools import partial
from typing import NoReturn

from fastapi import FastAPI
from uvicorn import Config, Server
from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess

from zoo.core.console import note, warn
from zoo.core.errors import UserError, first_line
from zoo.service.app import make_app
from zoo.service.gauges import SHARED
from zoo.service.hosted import set_threads
from zoo.service.options import ServiceOptions
from zoo.service.worker import start_worker

GRACE_SECONDS = 30  # for requests in progress when the service stops
HEALTH_SECONDS = 30  # a worker that does not react for so long is replaced
BACKLOG = 2048


def run(options: ServiceOptions) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in progress are answered first."""
    listener = listen(options)
    url = address(listener)
    if not options.is_local and not options.token:
        warn(f"anyone who reaches {url} can use the model: set a token, or listen on 127.0.0.1")
    if options.workers > 1:
        run_workers(options, listener, url)
        return
    set_threads(options)
    app = make_app(options)
    facts = app.state.service.facts
    note(f"serving {facts['name']} ({facts['labels']:,} labels) at {url}; API at {url}docs; Ctrl-C stops")
    signal.signal(signal.SIGTERM, stopped)  # uvicorn repeats the signal after it has finished
    Server(settings(app, options)).run([listener])


def run_workers(options: ServiceOptions, listener: socket.socket, url: str) -> None:
    note(f"serving {options.ckpt} at {url} with {options.workers} workers; API at {url}docs; Ctrl-C stops")
    with tempfile.TemporaryDirectory(prefix="zoo-metrics-") as shared:
        os.environ[SHARED] = shared
        supervisor = Multiprocess(settings(partial(start_worker, options, os.getpid()), options), [listener])
        supervisor.run()
        if any(process.exitcode == STARTUP_FAILURE for process in supervisor.processes):
            raise SystemExit(2)


def settings(app: FastAPI | partial[FastAPI], options: ServiceOptions) -> Config:
    return Config(
        app,
        factory=isinstance(app, partial),
        workers=options.workers,
        lifespan="on",
        ws="none",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=GRACE_SECONDS,
        timeout_worker_healthcheck=HEALTH_SECONDS,
    )


def listen(options: ServiceOptions) -> socket.socket:
    """Open the port first: a model that takes a minute to load should not find out then that it is taken."""
    try:
        family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
        return socket.create_server((options.host.strip("[]"), options.port), family=family, backlog=BACKLOG)
    except (OSError, OverflowError, UnicodeError) as error:
        reason = error.strerror or first_line(error) if isinstance(error, OSError) else first_line(error)
        raise UserError(f"cannot listen on `host={options.host}`, `port={options.port}`: {reason}") from error


def address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def stopped(*_: object) -> NoReturn:
    raise SystemExit(0)
