"""Cases: what is done to the zoo, and what has to come of it. The verdict is computed here, never by eye."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.hostile.sandbox import Result, Sandbox

ONE_LINE, SURVIVED = "one line", "survived"
GOOD = (ONE_LINE, SURVIVED)
BAD = ("traceback", "silent", "data loss", "security", "hang", "crash", "refused", "untidy", "broken case")
VERDICTS = (*GOOD, *BAD)
MEANING = {
    ONE_LINE: "exit code 2 and one line on stderr that starts with `error:`",
    SURVIVED: "exit code 0 and the stated outcome holds",
    "traceback": "a Python traceback on the terminal",
    "silent": "exit code 0, but the result is wrong or the input should have been refused",
    "data loss": "a file that was there or was to be written is gone or damaged",
    "security": "code of the attacker ran, or something outside the run's folder was written or connected to",
    "hang": "did not end in time",
    "crash": "ended by a signal or by the memory limit",
    "refused": "an error in one line where the command should have worked",
    "untidy": "ended otherwise: another exit code, several error lines, processes left behind",
    "broken case": "the case itself failed: a mistake in the driver",
}
ERROR, WORKS, EITHER = (ONE_LINE,), (SURVIVED,), GOOD
CANARY = "canary"
MODEL_NAMES = ("linear", "svm", "parabel", "tree", "httn", "bert", "blend", "dense", "dxml", "pair")
MAX_LINE = 1000  # characters of an error
# Programs that libraries start by themselves, such as `uname` by the standard library.
USUAL_PROGRAMS = ("uname", "lscpu", "file", "ldconfig", "/sbin/ldconfig", "gcc", "cc", "git", "nvidia-smi", "fc-list")
TINY = """
data:
  class_path: Sample
  init_args: {num_documents: 150, num_labels: 20, words_per_document: 30, batch_size: 16}
trainer:
  accelerator: cpu
  max_epochs: 1
  num_sanity_val_steps: 0
  enable_progress_bar: false
  enable_model_summary: false
model:
  backbone: {class_path: BiLSTM, init_args: {embed_dim: 8, hidden: 8}}
  head: Linear
  optimizer: {class_path: Adam, init_args: {lr: 0.01}}
wandb: {mode: disabled}
"""


class Bad(Exception):  # noqa: N818 (a verdict, not a failure of the driver)
    """A verdict, with the reason: raised by checks and stories."""

    def __init__(self, verdict: str, why: str) -> None:
        super().__init__(why)
        self.verdict, self.why = verdict, why


def silent_unless(true: object, why: str) -> None:
    if not true:
        raise Bad("silent", why)


def lost_unless(true: object, why: str) -> None:
    if not true:
        raise Bad("data loss", why)


class Box(Sandbox):
    """The folder of a case, with the models of the driver in reach."""

    models: Mapping[str, Path]  # run folders by name; see models.py

    def write(self, files: Mapping[str, str | bytes]) -> None:
        for name, content in files.items():
            path = self.folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode("utf8", "surrogateescape") if isinstance(content, str) else content)

    def model(self, name: str) -> Path:
        """A copy of a model's best checkpoint, `NAME.ckpt` in the folder of the case."""
        return Path(shutil.copy(self.models[name] / "checkpoints" / "best.ckpt", self.folder / f"{name}.ckpt"))

    def run_folder(self, name: str, place: str = "runs") -> Path:
        """A copy of a model's run folder, such as `runs/linear/TIME`, from which `--name=linear` resumes."""
        run = self.models[name]
        return Path(shutil.copytree(run, self.folder / place / name / run.name))

    def lines(self, name: str) -> list[Any]:
        """Rows of a jsonl file; what is not JSON is a lost file."""
        path = self.folder / name
        lost_unless(path.is_file(), f"{name} was not written")
        try:
            found = path.read_text("utf8").split("\n")  # `splitlines` would also split at U+2028
            return [json.loads(line, parse_constant=_no_constant) for line in found if line]
        except ValueError as error:
            raise Bad("silent", f"{name} is not valid JSON lines: {error}") from None

    def judge(self, result: Result, expect: Sequence[str] = GOOD, codes: Sequence[int] = ()) -> str:
        """Verdict of a result; raises `Bad` unless it is one of `expect`.

        `codes` are further exit codes that count as survived, such as 143 after SIGTERM.
        """
        for path in [self.folder / CANARY, *self.folder.glob(f"*/{CANARY}")]:
            if path.exists():
                raise Bad("security", f"the canary {path.relative_to(self.folder)} is there: foreign code ran")
        for event in result.events:
            what, _, value = event.partition(" ")
            if what != "start" or (Path(value).name not in USUAL_PROGRAMS and "python" not in Path(value).name):
                raise Bad("security", event)
        if result.too_large:
            raise Bad("crash", "killed: more than the memory limit")
        if result.code is None:
            raise Bad("hang", f"still running after {result.seconds:.0f} s")
        if result.has_traceback:
            raise Bad("traceback", last_line(result.err + result.out))
        if result.code < 0:
            if -result.code in [-code for code in codes]:
                return SURVIVED
            raise Bad("crash", f"signal {-result.code}")
        if result.left:
            raise Bad("untidy", f"{result.left} processes are left")
        if result.code == 2:
            return self._one_line(result, expect)
        if result.code != 0 and result.code not in codes:
            raise Bad("untidy", f"exit code {result.code}: {last_line(result.err)}")
        if SURVIVED not in expect:
            raise Bad("silent", f"exit code {result.code}, but it should be refused")
        return SURVIVED

    def _one_line(self, result: Result, expect: Sequence[str]) -> str:
        errors = result.errors
        if len(errors) != 1 or result.err.splitlines()[-1:] != errors:
            raise Bad("untidy", f"{len(errors)} error lines, the last line is {last_line(result.err)!r}")
        if len(errors[0]) > MAX_LINE or any(ord(sign) < 32 for sign in errors[0]):
            raise Bad("untidy", f"an error of {len(errors[0]):,} characters, or with control characters")
        if ONE_LINE not in expect:
            raise Bad("refused", errors[0])
        return ONE_LINE


Check = Callable[[Box, Result], None]


@dataclass(frozen=True)
class Case:
    """One attack.

    Args:
        id: name, unique within its group.
        run: arguments of the command line, a Python function (an API call in a fresh process), or a story: a function
            of the box that runs several things, and raises `Bad` or returns the last result.
        expect: good verdicts.
        files: files to write first, by name.
        setup: writes what is not data.
        check: looks at what is left, if the verdict is good so far; raises `Bad`.
        options: of `Sandbox.run`, such as `stdin` and `timeout`.
        codes: further good exit codes.
        needs: models that are used, besides those that the arguments mention.
    """

    id: str
    run: Sequence[str] | Callable[[], object] | Story
    expect: tuple[str, ...] = EITHER
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    setup: Callable[[Box], object] | None = None
    check: Check | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    codes: tuple[int, ...] = ()
    needs: tuple[str, ...] = ()

    @property
    def models(self) -> list[str]:
        """Models whose checkpoint `NAME.ckpt` is copied: those that the arguments mention, and `needs`."""
        words = [] if callable(self.run) or isinstance(self.run, Story) else self.run
        mentioned = (match[1] for word in words for match in re.finditer(r"(\w+)\.ckpt", word))
        return list(dict.fromkeys(name for name in (*mentioned, *self.needs) if name in MODEL_NAMES))

    def verdict(self, box: Box) -> tuple[str, str, list[Result]]:
        """Run the case; returns the verdict, the reason and everything that was run."""
        results: list[Result] = []
        box.record = results.append
        try:
            box.write({"tiny.yaml": TINY, **self.files})
            for name in self.models:
                box.model(name)
            if self.setup:
                self.setup(box)
            if isinstance(self.run, Story):
                found = self.run.tell(box)
                return (found or SURVIVED), "", results
            result = box.call(self.run, **self.options) if callable(self.run) else box.zoo(*self.run, **self.options)
            found = box.judge(result, self.expect, self.codes)
            if self.check:
                self.check(box, result)
            return found, result.errors[0] if result.errors else "", results
        except Bad as bad:
            return bad.verdict, bad.why, results


@dataclass(frozen=True)
class Story:
    """Several runs in a row; returns a good verdict or None, or raises `Bad`."""

    tell: Callable[[Box], str | None]


def last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1][:300] if lines else ""


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON")


def fit(*args: str) -> list[str]:
    return ["fit", "--config=tiny.yaml", "--final_test=false", *args]
