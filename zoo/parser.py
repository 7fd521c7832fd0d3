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

LONGEST = 400  # characters of a line that a person still reads
NOISE = re.compile(r"^\s*(Subtypes:|Given value type:|Given value:|Errors:|- Expected a <class 'NoneType'>)")
SECTIONS = {"trainer", "model", "data", "best", "last", "wandb"}  # of settings
SETTINGS = {"seed_everything", "name", "runs", "final_test", "ckpt_path"}


class OneLineParser(LightningArgumentParser):
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
        return f"{text.rstrip('.')}; the commands are fit, validate, test, predict and list"
    if "is not accepted" in text:
        return f"{text}; `--print_config` shows the keys there are"
    return text


def resolve_config(config: str, folder: Path) -> Path:
    """An experiment with its parts put in, as a file of the same name in `folder`.

    A section may name a file, relative to its own, and dotted keys then override single settings of it:
    `trainer: parts/trainer.yaml` and `trainer.max_epochs: 12`.
    """
    path = Path(config)
    content = read_yaml(path)
    for key in content:
        section = str(key).split(".")[0]
        if section not in SECTIONS | SETTINGS:
            close = difflib.get_close_matches(section, sorted(SECTIONS | SETTINGS), n=1)
            meant = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(sorted(SECTIONS | SETTINGS))}"
            raise UserError(f"{config}: unknown key {key!r}; {meant}")
    resolved: dict[str, Any] = {}
    for key, value in sorted(content.items(), key=lambda item: str(item[0]).count(".")):  # sections, then overrides
        if key in SECTIONS and isinstance(value, str) and value.endswith((".yaml", ".yml")):
            value = read_yaml(path.parent / value)
        if key in SECTIONS and not isinstance(value, dict | str):
            raise UserError(f"{config}: `{key}` is {value!r}: expected settings, or the file that has them")
        place = resolved
        *parents, last = str(key).split(".")
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    target = folder / path.name
    target.write_text(yaml.safe_dump(resolved, sort_keys=False), "utf8")
    return target


def read_yaml(path: Path) -> dict[str, Any]:
    if not path.is_file():
        raise UserError(f"no such configuration: {path}")
    try:
        content = yaml.safe_load(path.read_text("utf8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: expected sections such as `model:` and `data:`")
    return content
