"""Where `python -m zoo` begins: commands that only read files do not wait seconds for Lightning."""

from __future__ import annotations

import pkgutil
import sys

from zoo.verbs import one_line_errors, run_verb

QUICK = {"compare": "zoo.compare:compare", "report": "zoo.report:report", "sweep": "zoo.sweep:sweep"}
POSITIONAL = {"compare", "report"}  # their runs come without a name


def main(args: list[str] | None = None) -> None:
    argv = list(sys.argv[1:] if args is None else args)
    if argv and argv[0] in QUICK:
        with one_line_errors():
            run_verb(pkgutil.resolve_name(QUICK[argv[0]]), argv[0], argv[1:], positional=argv[0] in POSITIONAL)
        return
    from zoo import cli

    cli.main(argv)
