"""Where `python -m zoo` begins: `compare` and `sweep` do not wait seconds for Lightning, which all others need.

`report` needs it too, for pictures and evidence are those of the callbacks.
"""

from __future__ import annotations

import pkgutil
import sys

from zoo.verbs import one_line_errors, run_verb

# Verbs that take paths; they are imported only when called.
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
