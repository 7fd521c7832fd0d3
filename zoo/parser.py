"""Command-line mistakes in one line."""

from __future__ import annotations

import difflib
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

import yaml
from pytorch_lightning.cli import LightningArgumentParser

from datamodules.errors import UserError

NOISE = re.compile(r"^\s*(Subtypes:|Given value type:|Given value:|Errors:|- Expected a <class 'NoneType'>)")
HINT = "see `python -m zoo list` for what there is, and add --help for every key"


class OneLineParser(LightningArgumentParser):
    """Prints what is wrong without the usage text, and exits with code 2."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        # No abbreviations: a misspelt key must not pass for another.
        super().__init__(*args, **{"allow_abbrev": False} | kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        fail(condense(message))


def fail(message: str) -> NoReturn:
    sys.stderr.write(f"error: {message}\n")
    raise SystemExit(2)


def condense(message: str) -> str:
    """A jsonargparse message, which may be a page, as one line."""
    lines = [line.strip(" -") for line in message.splitlines() if not NOISE.match(line)]
    text = " ".join(line for line in lines if line and "does not validate against any" not in line.lower())
    text = re.sub(r"\s+", " ", text).strip()
    return text if len(text) <= 400 else f"{text[:400]} ..."


def check_top_level(config: str, known: set[str]) -> None:
    """jsonargparse takes a misspelt section without a word: refuse it."""
    path = Path(config)
    if not path.is_file():
        raise UserError(f"no such configuration: {config}")
    try:
        content: Any = yaml.safe_load(path.read_text("utf8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{config} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{config}: expected sections such as `model:` and `data:`")
    for key in content:
        if str(key).split(".")[0] not in known:
            close = difflib.get_close_matches(str(key), sorted(known), n=1)
            meant = f"; did you mean {close[0]!r}?" if close else f"; known are {', '.join(sorted(known))}"
            raise UserError(f"{config}: unknown key {key!r}{meant}")
