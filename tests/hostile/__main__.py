"""Attacks the command line and the Python API: `python -m tests.hostile --help`. See docs/reference/robustness.md."""

from __future__ import annotations

import argparse
import gc
import importlib
import os
import pkgutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path

from tests.hostile import cases as packages
from tests.hostile.case import GOOD, MEANING, MODEL_NAMES, VERDICTS, Box, Case
from tests.hostile.models import train
from tests.hostile.sandbox import Result, end_processes_in

SLACK_SECONDS = 600  # for a case as a whole: each of its runs has a limit of its own
LOGGED = 3000  # characters of an output in the log


@dataclass(frozen=True)
class Verdict:
    """What came of a case."""

    group: str
    id: str
    verdict: str
    why: str
    seconds: float
    log: str

    @property
    def is_good(self) -> bool:
        return self.verdict in GOOD


def groups(seed: int = 0) -> dict[str, list[Case]]:
    """All cases by group: each module in `cases` is a group, with a function `cases(seed)`."""
    found = {}
    for module in pkgutil.iter_modules(packages.__path__):
        found[module.name] = importlib.import_module(f"{packages.__name__}.{module.name}").cases(seed)
        names = Counter(case.id for case in found[module.name])
        assert max(names.values()) == 1, f"{module.name}: {names.most_common(1)}"
    return found


def run_case(
    group: str, case: Case, models: dict[str, Path], folder: Path, cache: Path, patience: float = 1
) -> Verdict:
    """Run a case in this process, in a new folder."""
    folder.mkdir(parents=True)
    box = Box(folder, shared=[cache], patience=patience)
    box.models = models
    start = time.monotonic()
    try:
        verdict, why, results = case.verdict(box)
    except Exception:
        verdict, why, results = "broken case", traceback.format_exc(), []
    seconds = time.monotonic() - start
    return Verdict(group, case.id, verdict, " ".join(why.split()), seconds, "\n".join(map(described, results)))


def described(result: Result) -> str:
    head = f"  exit code {result.code}, {result.seconds:.1f} s" + "".join(f"\n  {event}" for event in result.events)
    texts = {"stdout": result.out[-LOGGED:], "stderr": result.err[-LOGGED:]}
    parts = [f"  {name}: " + text.rstrip().replace("\n", "\n    ") for name, text in texts.items() if text.strip()]
    return "\n".join([head, *parts])


def run_all(chosen: Sequence[tuple[str, Case]], folder: Path, jobs: int, patience: float = 1) -> list[Verdict]:
    """Run cases, each in a fork of this process."""
    needed = {name for _, case in chosen for name in case.models}
    models = {name: train(name, folder / "models" / name, patience) for name in MODEL_NAMES if name in needed}
    verdicts: list[Verdict] = []
    waiting, running = list(reversed(chosen)), dict[Connection, tuple[int, str, Case, float, Path]]()
    while waiting or running:
        while waiting and len(running) < jobs:
            group, case = waiting.pop()
            place = folder / "cases" / f"{group}-{case.id}".replace("/", "_")
            receiver, sender = Pipe(duplex=False)
            if not (child := os.fork()):
                os.setpgid(0, 0)
                sender.send(run_case(group, case, models, place, folder / "cache", patience))
                os._exit(0)
            sender.close()
            running[receiver] = (child, group, case, time.monotonic(), place)
        for pipe in wait(list(running), 1.0):
            child, group, case, start, place = running.pop(pipe)  # type: ignore[arg-type]
            try:
                verdicts.append(pipe.recv())  # type: ignore[union-attr]
            except EOFError:
                verdicts.append(Verdict(group, case.id, "broken case", "its process died", 0.0, ""))
            os.waitpid(child, 0)
            say(len(verdicts), len(chosen), verdicts[-1])
        for child, _, _, start, place in running.values():
            if time.monotonic() - start > patience * SLACK_SECONDS:
                os.kill(child, signal.SIGKILL)
                end_processes_in(place)
    return verdicts


def say(number: int, total: int, verdict: Verdict) -> None:
    mark = " " if verdict.is_good else "!"
    line = f"{mark} {number}/{total} {verdict.group}/{verdict.id}: {verdict.verdict} ({verdict.seconds:.1f} s)"
    print(line if verdict.is_good else f"{line}: {verdict.why[:200]}", flush=True)


def table(verdicts: Sequence[Verdict]) -> str:
    """Markdown: groups x verdicts, then the bad cases."""
    used = [name for name in VERDICTS if name in GOOD or any(verdict.verdict == name for verdict in verdicts)]
    counts = Counter((verdict.group, verdict.verdict) for verdict in verdicts)
    names = list(dict.fromkeys(verdict.group for verdict in verdicts))
    rows = [[name, *(counts[name, column] for column in used)] for name in names]
    rows.append(["**all**", *(sum(counts[name, column] for name in names) for column in used)])
    lines = ["| " + " | ".join(["group", *used, "cases"]) + " |", "|---" + "|---:" * (len(used) + 1) + "|"]
    lines += ["| " + " | ".join([row[0], *(str(n or "-") for n in row[1:]), str(sum(row[1:]))]) + " |" for row in rows]
    bad = [verdict for verdict in verdicts if not verdict.is_good]
    for name in used:
        if found := [verdict for verdict in bad if verdict.verdict == name]:
            lines += ["", f"**{name}** ({MEANING[name]})", ""]
            lines += [f"- `{v.group}/{v.id}`: {one_line(v.why)}" for v in found]
    return "\n".join(lines) + "\n"


def one_line(text: str) -> str:
    text = "".join(sign if sign.isprintable() else "?" for sign in text).replace("`", "'").replace("<", "&lt;")
    return text[:200] + (" ..." if len(text) > 200 else "")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--group", action="append", help="only this group; can be repeated")
    parser.add_argument("--only", action="append", help="only the cases with this in their GROUP/ID; can be repeated")
    parser.add_argument("--out", type=Path, help="Markdown file for the table")
    parser.add_argument("--log", type=Path, help="file for the output of all bad cases")
    parser.add_argument("--seed", type=int, default=0, help="seed of the fuzzers and of the times of kills")
    parser.add_argument("--jobs", type=int, default=1, help="cases that run at the same time")
    parser.add_argument("--patience", type=float, default=1, help="factor of all time limits, for a busy machine")
    parser.add_argument("--keep", type=Path, help="folder for the files of all cases, which are removed otherwise")
    parser.add_argument("--list", action="store_true", help="list the cases")
    given = parser.parse_args(argv)
    found = groups(given.seed)
    if unknown := set(given.group or ()) - found.keys():
        parser.error(f"unknown group {', '.join(unknown)}; there are {', '.join(found)}")
    chosen = [
        (group, case)
        for group, all_cases in found.items()
        for case in all_cases
        if (not given.group or group in given.group)
        and (not given.only or any(part in f"{group}/{case.id}" for part in given.only))
    ]
    if given.list:
        print("\n".join(f"{group}/{case.id}" for group, case in chosen))
        return 0
    prepare_to_fork()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that the folder is removed
    with tempfile.TemporaryDirectory(prefix="hostile-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            verdicts = run_all(chosen, folder.resolve(), given.jobs, given.patience)
        finally:
            end_processes_in(folder.resolve())
            for path in Path("/tmp").glob("escaped-from-hostile*"):  # absolute names that some cases try
                path.unlink()
    order = {(group, case.id): place for place, (group, case) in enumerate(chosen)}
    verdicts.sort(key=lambda verdict: order[verdict.group, verdict.id])
    text = table(verdicts)
    print("\n" + text)
    if given.out:
        given.out.write_text(text, "utf8")
    bad = [verdict for verdict in verdicts if not verdict.is_good]
    if given.log:
        entries = [f"=== {v.group}/{v.id}: {v.verdict}: {v.why}\n{v.log}\n" for v in bad]
        given.log.write_text("\n".join(entries), "utf8", errors="replace")
    return 1 if bad else 0


def prepare_to_fork() -> None:
    """Import once what each run imports."""
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.dont_write_bytecode = True
    import pandas  # noqa: F401 (pyarrow imports it)
    import torch

    import zoo.commands.compare
    import zoo.commands.data
    import zoo.commands.lightning
    import zoo.commands.main
    import zoo.commands.predict
    import zoo.commands.rerank  # noqa: F401
    from zoo.commands.catalog import import_parts

    import_parts()
    torch.set_num_threads(1)
    gc.collect()
    gc.freeze()  # or each collection in a child would copy the memory that it shares with this process


if __name__ == "__main__":
    sys.exit(main())
