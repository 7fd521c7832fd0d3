"""Where `python -m zoo` begins: commands that only read files do not wait seconds for Lightning."""

from __future__ import annotations

import pkgutil
import sys

from zoo.verbs import one_line_errors, run_verb

QUICK = {"compare": "zoo.compare:compare", "report": "zoo.report:report"}


def main(args: list[str] | None = None) -> None:
    argv = list(sys.argv[1:] if args is None else args)
    command = argv[0] if argv else ""
    if command in QUICK:
        with one_line_errors():
            run_verb(pkgutil.resolve_name(QUICK[command]), command, argv[1:], positional=True)
    elif command == "sweep":  # it hands what it does not know to every run
        from zoo.sweep import run_sweep

        with one_line_errors():
            run_sweep(argv[1:])
    else:
        from zoo import cli

        cli.main(argv)
