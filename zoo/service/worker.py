"""Start of a worker; imports nothing slow before it can answer the supervisor, which would take it for dead."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from zoo.core.console import terminal_output
from zoo.core.errors import UserError, printable
from zoo.core.orphans import end_with_parent
from zoo.service.options import ServiceOptions

if TYPE_CHECKING:
    from fastapi import FastAPI


def start_worker(options: ServiceOptions, parent: int) -> FastAPI:
    """Make the application in a process of its own, whose start-up errors are printed there."""
    from uvicorn.config import STARTUP_FAILURE

    from zoo.service.app import make_app
    from zoo.service.hosted import set_threads

    end_with_parent(parent)
    terminal = terminal_output()
    terminal.__enter__()  # until the process ends
    set_threads(options)
    try:
        return make_app(options)
    except UserError as error:
        sys.stderr.write(f"error: {printable(str(error))}\n")
        sys.stderr.flush()
        os._exit(STARTUP_FAILURE)  # at once: the supervisor waits for an answer of a process that is about to end
