"""Entry point of the command line: finds the command and imports only what it needs."""

from __future__ import annotations

import pkgutil
import sys

from zoo.commands.usage import command_help, listing, page, section, summary
from zoo.commands.verbs import HELP, one_line_errors, run_command
from zoo.core.console import terminal_output
from zoo.core.cores import let_threads_sleep
from zoo.core.errors import UserError, did_you_mean

TRAINING = {
    "fit": "train a model, then test its best checkpoint",
    "validate": "evaluate a checkpoint on the validation documents",
    "test": "evaluate a checkpoint on the test documents",
}
OWN_PARSERS = {  # they pass other options on to `zoo fit`
    "sweep": "zoo.commands.sweep:run_sweep",
    "reproduce": "zoo.commands.reproduce:reproduce",
}
COMMANDS = {  # typed functions, imported when they are called
    "predict": "zoo.commands.predict:predict",
    "serve": "zoo.commands.serve:serve",
    "add-labels": "zoo.commands.add_labels:add_labels",
    "calibrate": "zoo.commands.calibrate:calibrate",
    "rerank": "zoo.commands.rerank:rerank",
    "ensemble": "zoo.commands.ensemble:ensemble",
    "blend": "zoo.commands.blend_runs:blend",
    "tree": "zoo.commands.tree:show_tree",
    "export": "zoo.commands.export:export",
    "push": "zoo.commands.push:push",
    "compare": "zoo.commands.compare:compare",
    "report": "zoo.commands.report:report",
    "list": "zoo.commands.catalog:list_parts",
    "data list": "zoo.commands.data:list_corpora",
    "data prepare": "zoo.commands.data:prepare",
    "data stats": "zoo.commands.data:stats",
    "data convert": "zoo.commands.data:convert",
    "data check": "zoo.commands.data:check",
    "data embed": "zoo.commands.embed:embed",
}
DATA = "list, prepare, convert and check corpora"
SECTIONS = {
    "train and evaluate": ("fit", "validate", "test", "sweep", "reproduce"),
    "use a trained model": (
        "predict",
        "serve",
        "export",
        "push",
        "calibrate",
        "add-labels",
        "rerank",
        "ensemble",
        "blend",
        "tree",
    ),
    "analyze runs": ("compare", "report"),
    "data and components": ("data", "list"),
}
COMMAND_COLUMN = 14


@terminal_output()
def main(args: list[str] | None = None) -> None:
    """Run one command; errors that the user can fix end in one line and exit code 2."""
    let_threads_sleep()
    with one_line_errors():
        dispatch(list(sys.argv[1:] if args is None else args))


def script() -> None:
    """Run the installed `zoo`."""
    main()


def dispatch(argv: list[str]) -> None:
    command, rest = (argv[0], argv[1:]) if argv else ("--help", [])
    if command == "data" and rest and rest[0] not in HELP:
        command, rest = f"data {rest[0]}", rest[1:]
    if command in HELP:
        sys.stdout.write(overview())
    elif command == "--version":
        from zoo.core.version import __version__

        sys.stdout.write(f"xmc-zoo {__version__}\n")
    elif command == "data":
        sys.stdout.write(data_overview())
    elif command in TRAINING:
        train(command, rest)
    elif command in OWN_PARSERS:
        if sys.platform == "win32":
            raise UserError(f"`zoo {command}` needs file locks and process groups, which Windows lacks: use WSL")
        pkgutil.resolve_name(OWN_PARSERS[command])(rest)
    elif command not in COMMANDS:
        if command.startswith("-"):
            raise UserError(f"unknown option {command}: the command comes first, as in `zoo fit --config FILE`")
        known = [*TRAINING, *OWN_PARSERS, "data", *COMMANDS]
        raise UserError(f"unknown command `{command}`; {did_you_mean(command, known)}")
    elif HELP & set(rest):
        sys.stdout.write(command_help(COMMANDS[command], command))
    else:
        run_command(pkgutil.resolve_name(COMMANDS[command]), command, rest)


def train(command: str, rest: list[str]) -> None:
    if HELP & set(rest):
        from zoo.commands.training_help import training_help

        sys.stdout.write(training_help(command, TRAINING[command]))
        return
    from zoo.commands.lightning import main as run_lightning

    run_lightning([command, *("--help" if argument == "--help_all" else argument for argument in rest)])


def overview() -> str:
    summaries = TRAINING | {name: summary(target) for name, target in (COMMANDS | OWN_PARSERS).items()} | {"data": DATA}
    options = {"--version": "show the version and exit", "-h, --help": "show this help and exit"}
    return page(
        "usage: zoo COMMAND [options]",
        "Train, evaluate and use models for extreme multi-label text classification.",
        *(
            section(title, {name: summaries[name] for name in names}, COMMAND_COLUMN)
            for title, names in SECTIONS.items()
        ),
        section("options", options, COMMAND_COLUMN),
        "Run `zoo COMMAND --help` for the options of a command.\nTo get started: zoo fit --config joint_reuters",
    )


def data_overview() -> str:
    commands = {name.removeprefix("data "): target for name, target in COMMANDS.items() if name.startswith("data ")}
    return page(
        "usage: zoo data COMMAND [options]",
        f"{DATA.capitalize()}.",
        section("commands", {name: summary(target) for name, target in commands.items()}, COMMAND_COLUMN),
        listing("examples", ("zoo data list", "zoo data prepare reuters", "zoo data stats my_corpus/")),
        "Run `zoo data COMMAND --help` for the options of a command.",
    )
