"""Runs commands, which are typed functions, and prints errors in one line; imports nothing slow."""

from __future__ import annotations

import errno
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from inspect import Parameter, signature
from itertools import islice
from json import dumps
from typing import NoReturn

from zoo.core.console import LOGGER
from zoo.core.errors import UserError, printable

HELP = {"-h", "--help"}
MAX_MESSAGE = 400  # characters
HINT = " (set ZOO_TRACEBACK=1 for the traceback)"
NOISE = re.compile(r"^\s*(Subtypes:|Given value type:|Given value:|Errors:|- Expected a <class 'NoneType'>)")
BOOLEANS = {"true": True, "yes": True, "false": False, "no": False}
SECTIONS = {  # section of a run's settings, by the package that raised an error
    "datamodules": "data",
    "backbones": "model.backbone",
    "heads": "model.head",
    "losses": "model.head.loss",
    "training": "model",
    "callbacks": "",
}
PREFIXES = {name: name for name in ("data", "model", "trainer", "stages")}
PREFIXES |= {"backbone": "model.backbone", "head": "model.head"}
TOP_LEVEL = {"from_stage", "ckpt", "ckpt_path", "runs", "trust"}  # options of a run without a section
SETTING = re.compile(rf"`(?:(?P<prefix>{'|'.join(PREFIXES)})(?:\.|(?==)))?(?P<name>[a-z_][\w.-]*)?(?P<value>=[^`]*)?`")


def run_command(function: Callable[..., None], name: str, argv: list[str]) -> None:
    """Call a typed function with arguments from the command line.

    Parameters before `*` are positional, the others are options.
    """
    parameters = signature(function).parameters
    if not argv and all(p.default is not Parameter.empty for p in parameters.values()):
        return function()  # such as `zoo list`: the parser is not worth its import
    from zoo.commands.own_modules import split_trust
    from zoo.commands.parsers import OneLine

    positional = [p for p in parameters.values() if p.kind is Parameter.POSITIONAL_OR_KEYWORD]
    trust, argv = split_trust(argv) if "trust" in parameters else ([], argv)
    args = spell_out(argv, [p.name for p in parameters.values() if p.default is False])
    if [p.annotation for p in positional] == ["list[str]"]:
        args = as_one_list(args)
    parser = OneLine(prog=f"zoo {name}")
    parser.add_function_arguments(function, as_group=False, as_positional=bool(positional))
    given = parser.parse_args([*args, *([f"--trust={dumps(trust)}"] if trust else [])])
    with named_options(*parameters):
        function(**given.as_dict())


@contextmanager
def named_options(*own: str) -> Iterator[None]:
    """Turn settings that errors and notes name into the options `own` of a command."""

    def rename(record: logging.LogRecord) -> bool:
        record.msg, record.args = own_options(record.getMessage(), own), ()
        return True

    LOGGER.addFilter(rename)
    try:
        yield
    except UserError as error:
        raise UserError(own_options(str(error), own)) from error
    finally:
        LOGGER.removeFilter(rename)


def spell_out(argv: list[str], flags: Collection[str]) -> list[str]:
    """Replace `--flag` by `--flag=true`, which the parser expects."""
    following = [*argv, "--"][1:]
    return [
        f"{argument}=true" if argument.removeprefix("--") in flags and after.lower() not in BOOLEANS else argument
        for argument, after in zip(argv, following, strict=True)
    ]


def as_one_list(args: list[str]) -> list[str]:
    """Move all positional arguments to the front, as one JSON list: paths may contain commas and brackets."""
    values, options = [], []
    rest = iter(args)
    for argument in rest:
        if not argument.startswith("-"):
            values.append(argument)
            continue
        options.append(argument)
        if argument.startswith("--") and "=" not in argument:
            options += islice(rest, 1)
    return [*([dumps(values, ensure_ascii=False)] if values else []), *options]


@contextmanager
def one_line_errors(also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """End errors that the user can fix in one line and exit code 2; `also` are further types of such errors."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        raise SystemExit(130) from None
    except SystemExit as stop:
        if module := importing(stop):
            fail(f"module {module} cannot be imported: it calls sys.exit({stop.code})")
        raise
    except BrokenPipeError:  # the reader of our output has gone
        discard_output()
        raise SystemExit(1) from None
    except Exception as error:
        if "ZOO_TRACEBACK" in os.environ or (message := explain(error, also)) is None:
            raise
        fail(message)


def importing(error: BaseException) -> str | None:
    """Name of the module whose import raised this error, if it was one."""
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__) if frame.f_code.co_name == "<module>")
    names = (str(frame.f_globals.get("__name__")) for frame in frames)
    return next((name for name in names if name != "__main__"), None)


def discard_output() -> None:
    """Discard what standard output still holds, which Python would otherwise fail to write when it exits."""
    with suppress(AttributeError, OSError):  # it is closed, or no file
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def explain(error: BaseException | None, also: tuple[type[Exception], ...] = ()) -> str | None:
    """One-line message of an error, or of its cause (jsonargparse wraps errors); None if the user cannot fix it."""
    cause = error
    while cause is not None:
        if isinstance(cause, (UserError, *also)):
            return " ".join((as_options(cause) if isinstance(cause, UserError) else str(cause)).split())
        if isinstance(cause, OSError) and cause.errno == errno.ENOSPC:
            return f"the disk is full ({cause.filename or 'unknown file'}): free some space and run again"
        cause = cause.__cause__ or cause.__context__
    if isinstance(error, OSError) and error.filename and error.strerror:  # such as a folder that was removed meanwhile
        return f"{error.filename}: {error.strerror}{HINT}"
    return None


def fail(message: str) -> NoReturn:
    message = printable(message)
    sys.stderr.write(f"error: {message if len(message) <= MAX_MESSAGE else message[:MAX_MESSAGE] + ' ...'}\n")
    raise SystemExit(2)


def own_options(text: str, own: Collection[str]) -> str:
    """Replace Python names in a message by the options `own` of a command; other names stay."""

    def option(found: re.Match[str]) -> str:
        name = found["name"] or ""
        return f"--{name}{found['value'] or ''}" if name.split(".")[0] in own else found[0]

    return SETTING.sub(option, text)


def as_options(error: UserError) -> str:
    """Replace Python names in a message by options of a run, in the section of the package that raised the error."""
    modules = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    raising = [module.split(".") for module in modules if not module.endswith(".errors")]  # not check_range and others
    packages = [package for names in raising for package in names if package in SECTIONS]
    section = ".".join(filter(None, [SECTIONS[packages[-1]], error.owner])) if packages else ""
    if not packages:  # raised by the command line itself
        return str(error)

    def option(found: re.Match[str]) -> str:
        prefix, name, value = found["prefix"], found["name"], found["value"] or ""
        if not prefix and name in TOP_LEVEL:
            return f"--{name}{value}"
        where = PREFIXES[prefix] if prefix else section
        return f"--{'.'.join(filter(None, [where, name]))}{value}" if where else found[0]

    return SETTING.sub(option, str(error))


def condense(message: str) -> str:
    """Shorten a jsonargparse message, which may be a page long, to one line that says what to do."""
    lines = [line.strip(" -") for line in message.splitlines() if not NOISE.match(line)]
    text = " ".join(line for line in lines if line and "does not validate against any" not in line.lower())
    text = re.sub(r"\s+", " ", text).strip()
    if found := re.search(r"dot import path string: (\S+)", text):
        key = re.search(r'Parser key "([^"]+)"', text)
        where = f"{key[1]}: " if key else ""
        return f"{where}unknown class {found[1]!r}; see `zoo list`, or give a dotted path"
    if "arguments are required" in text and ".model." in text:
        return f"{text}; give an experiment with --config, see `zoo list`"
    if "is not accepted" in text:
        return f"{text}; `--print_config` shows the valid keys"
    return text
