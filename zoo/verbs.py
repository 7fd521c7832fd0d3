"""Commands as typed functions, and mistakes in one line; imports nothing that takes long."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from inspect import signature
from itertools import islice
from json import dumps
from typing import Any, NoReturn

from jsonargparse import ArgumentParser, auto_cli

from datamodules.errors import UserError

LONGEST = 400  # characters of a line that a person still reads
NOISE = re.compile(r"^\s*(Subtypes:|Given value type:|Given value:|Errors:|- Expected a <class 'NoneType'>)")
BOOLEANS = {"true", "false", "yes", "no"}
WITHOUT_VALUE = {"--help", "--print_config"}
COMMANDS = "fit, validate, test, predict, compare, report, sweep, add-labels, rerank, tree, data and list"


class OneLine(ArgumentParser):
    """Prints what is wrong without the usage text, and exits with code 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # No abbreviations: a misspelt key must not pass for another.
        super().__init__(*args, **{"allow_abbrev": False} | kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        fail(condense(message))


def fail(message: str) -> NoReturn:
    sys.stderr.write(f"error: {message if len(message) <= LONGEST else message[:LONGEST] + ' ...'}\n")
    raise SystemExit(2)


def condense(message: str) -> str:
    """A jsonargparse message, which may be a page, as one line that says what to do."""
    lines = [line.strip(" -") for line in message.splitlines() if not NOISE.match(line)]
    text = " ".join(line for line in lines if line and "does not validate against any" not in line.lower())
    text = re.sub(r"\s+", " ", text).strip()
    if found := re.search(r"dot import path string: (\S+)", text):
        key = re.search(r'Parser key "([^"]+)"', text)
        where = f"{key[1]}: " if key else ""
        return f"{where}there is no {found[1]!r}; see `python -m zoo list`, or give a dotted path"
    if "arguments are required" in text and ".model." in text:
        return f"{text}; give an experiment with --config, see `python -m zoo list`"
    if '"subcommand"' in text:
        return f"{text.rstrip('.')}; the commands are {COMMANDS}"
    if "is not accepted" in text:
        return f"{text}; `--print_config` shows the keys there are"
    return text


def run_verb(verb: Callable[..., None], name: str, argv: list[str], positional: bool = False) -> None:
    """Call a typed function with arguments from the command line; `positional` ones come without their names."""
    prog, about = f"python -m zoo {name}", first_sentence(verb.__doc__)
    args = spell_out(argv, verb)
    parameters = [*signature(verb).parameters.values()]
    if positional and parameters and parameters[0].annotation == "list[str]":
        args = as_one_list(args)
    auto_cli(verb, args=args, as_positional=positional, parser_class=OneLine, prog=prog, description=about)


def spell_out(argv: list[str], verb: Callable[..., None]) -> list[str]:
    """Arguments with `--flag` as `--flag=true`, which is what the parser takes."""
    flags = {f"--{name}" for name, parameter in signature(verb).parameters.items() if parameter.default is False}
    following = [*argv, "--"][1:]
    return [
        f"{argument}=true" if argument in flags and after.lower() not in BOOLEANS else argument
        for argument, after in zip(argv, following, strict=True)
    ]


def as_one_list(args: list[str]) -> list[str]:
    """Arguments with all that come without a name as one list in front, quoted: paths may have commas and brackets."""
    values, options = [], []
    rest = iter(args)
    for argument in rest:
        if not argument.startswith("-"):
            values.append(argument)
            continue
        options.append(argument)
        if argument.startswith("--") and "=" not in argument and argument not in WITHOUT_VALUE:
            options += islice(rest, 1)
    return [*([dumps(values, ensure_ascii=False)] if values else []), *options]


def first_sentence(text: str | None) -> str:
    """Up to the first full stop that ends a sentence."""
    return " ".join((text or "").split()).split(". ")[0].rstrip(".")


@contextmanager
def one_line_errors(also: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """What a person can put right ends in one line and exit code 2; `also` are further kinds of such errors."""
    try:
        yield
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        raise SystemExit(130) from None
    except BrokenPipeError:  # whoever reads our output has gone: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        if "ZOO_TRACEBACK" in os.environ or (message := explain(error, also)) is None:
            raise
        fail(message)


def explain(error: BaseException | None, also: tuple[type[Exception], ...] = ()) -> str | None:
    """The line for a person, if this error or one behind it (jsonargparse wraps them) is a person's to mend."""
    while error is not None:
        if isinstance(error, (UserError, *also)):
            return " ".join(str(error).split())
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return f"the disk is full ({error.filename or 'no file named'}): free some space and run again"
        error = error.__cause__ or error.__context__
    return None
