"""Faults: kills and signals at random times, full disks, damaged caches, two runs in one folder, dead processes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from tests.hostile.case import EITHER, ERROR, WORKS, Bad, Box, Case, Story, last_line, lost_unless, silent_unless
from tests.hostile.sandbox import FILE_SIZE, Kill, Result, _outcome

EPOCHS = 4
FIT = ("fit", "--config=tiny.yaml", "--name=run", f"--trainer.max_epochs={EPOCHS}")
RESUME = (*FIT, "--ckpt_path=last")
ENGINE = ["--model.backbone=Words", "--model.head=OneVsRestSvm", "--stages=[{name: fit, on_enter: [fit]}]"]
DISK = "2m"
LOCK = ".lock"  # of a run folder; it stays after any run


def after(seconds: float) -> Callable[[], bool]:
    start: list[float] = []

    def when() -> bool:
        start.append(time.monotonic())
        return start[-1] - start[0] >= seconds

    return when


def once(box: Box, pattern: str) -> Callable[[], bool]:
    return lambda: any(box.folder.glob(pattern))


def the_run(box: Box, name: str = "run") -> Path:
    found = sorted((box.folder / "runs" / name).glob("*/"))
    silent_unless(len(found) == 1, f"{len(found)} run folders instead of one")
    return found[0]


def metrics(folder: Path) -> dict[str, float]:
    lost_unless((folder / "metrics.json").is_file(), "there is no metrics.json")
    found: dict[str, float] = json.loads((folder / "metrics.json").read_text())["metrics"]
    return found


def finite_checkpoints(folder: Path) -> list[Path]:
    """Checkpoints below a folder, all of which can be read and are finite."""
    found = list(folder.glob("**/*.ckpt"))
    for file in found:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
        except Exception as error:
            raise Bad("data loss", f"{file.name} cannot be read: {error}") from None
        for name, value in content["state_dict"].items():
            if isinstance(value, torch.Tensor) and not value.isfinite().all():
                raise Bad("data loss", f"{file.name} has a weight that is not finite: {name}")
    return found


def resume_equals_whole(box: Box) -> str:
    """After any number of stops, the run resumes to the metrics of one that was never stopped."""
    found = box.judge(box.zoo(*RESUME), WORKS)
    resumed = metrics(the_run(box))
    box.judge(box.zoo(*FIT[:2], "--name=whole", *FIT[3:]), WORKS)
    silent_unless(resumed == metrics(the_run(box, "whole")), "the resumed run has other metrics")
    finite_checkpoints(the_run(box))
    return found


def signalled(number: signal.Signals, seeds: list[float], codes: tuple[int, ...], **options: object) -> Story:
    """Stop a run several times at the given moments, then let it end."""

    def tell(box: Box) -> str:
        for seconds in seeds:
            kill = Kill(number, after(seconds), **options)  # type: ignore[arg-type]
            box.judge(box.zoo(*RESUME, kill=kill), EITHER, codes)
            if folders := list((box.folder / "runs" / "run").glob("*/")):
                finite_checkpoints(folders[0])
        return resume_equals_whole(box)

    return Story(tell)


@contextmanager
def disk(box: Box, size: str = DISK) -> Iterator[Path]:
    """A small disk, if we may mount one."""
    place = box.folder / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "hostile", str(place)]
    mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield place
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(place)], check=False)


def on_small_disk(*args: str, env: str = "", size: str = DISK) -> Story:
    """A command whose output, or cache, is on a disk that fills; without rights to mount, files are limited in size."""

    def tell(box: Box) -> str:
        with disk(box, size) as place:
            limit = FILE_SIZE if os.path.ismount(place) else 20_000
            variables = {env: str(place)} if env else {}
            result = box.zoo(*args, env=variables, file_size=limit)
            found = box.judge(result, ERROR)
            left = [str(path) for path in place.rglob(".*") if path.is_file() and path.name != LOCK]
            lost_unless(not left, f"temporary files stay: {left}")
            finite_checkpoints(place)
            return found

    return Story(tell)


def full_when_resumed(box: Box) -> str:
    """The disk fills while a checkpoint is replaced: the former one stays."""
    box.judge(box.zoo(*FIT[:3], "--trainer.max_epochs=1"), WORKS)
    last = the_run(box) / "checkpoints" / "last.ckpt"
    before = last.read_bytes()
    found = box.judge(box.zoo(*RESUME, file_size=len(before) // 2), ERROR)
    lost_unless(last.read_bytes() == before, "last.ckpt was damaged")
    return found


def cache_after(change: Callable[[Path], object]) -> Story:
    """Prepare, damage the cache, train again: as before, or one line."""

    def tell(box: Box) -> str:
        box.judge(box.zoo(*FIT), WORKS)
        before = metrics(the_run(box))
        (cache,) = [path for path in (box.folder / "cache").iterdir() if path.is_dir()]
        change(cache)
        again = [*FIT[:2], "--name=again", *FIT[3:]]
        found = box.judge(box.zoo(*again), EITHER)
        if found == "survived":
            silent_unless(metrics(the_run(box, "again")) == before, "a damaged cache changes the metrics")
        return found

    return Story(tell)


def flip(path: Path, place: float, size: int = 64) -> None:
    content = bytearray(path.read_bytes())
    start = int(len(content) * place)
    content[start : start + size] = bytes(byte ^ 0x55 for byte in content[start : start + size])
    path.write_bytes(content)


def only_header(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:8])


def replaced_by_file(cache: Path) -> None:
    shutil.rmtree(cache)
    cache.write_text("hello")


def emptied(cache: Path) -> None:
    for file in cache.iterdir():
        file.unlink()


def other_labels(cache: Path) -> None:
    facts = json.loads((cache / "facts.json").read_text())
    facts["space"]["names"] = facts["space"]["names"][:5]
    (cache / "facts.json").write_text(json.dumps(facts))


CACHES: dict[str, Callable[[Path], object]] = {
    "deleted": shutil.rmtree,
    "emptied": emptied,
    "replaced-by-a-file": replaced_by_file,
    "facts-missing": lambda cache: (cache / "facts.json").unlink(),
    "facts-broken": lambda cache: (cache / "facts.json").write_text("{"),
    "facts-with-fewer-labels": other_labels,
    "tokenizer-missing": lambda cache: (cache / "tokenizer.json").unlink(),
    "tokenizer-broken": lambda cache: (cache / "tokenizer.json").write_text("{}"),
    "rows-missing": lambda cache: (cache / "train.arrow").unlink(),
    "rows-truncated": lambda cache: only_header(cache / "train.arrow"),
    "rows-flipped": lambda cache: flip(cache / "train.arrow", 0.6),
    "rows-flipped-at-end": lambda cache: flip(cache / "train.arrow", 0.98),
    "rows-of-another-split": lambda cache: shutil.copy(cache / "val.arrow", cache / "train.arrow"),
    "lock-is-a-folder": lambda cache: (
        cache.with_name(f"{cache.name}.lock").unlink(missing_ok=True),
        cache.with_name(f"{cache.name}.lock").mkdir(),
    ),
}


def cache_vanishes(box: Box) -> str:
    """The cache is removed while a run trains from it."""
    cache = box.folder / "cache"

    def when() -> bool:
        if any(box.folder.glob("runs/*/*/metrics.csv")):
            shutil.rmtree(cache, ignore_errors=True)
        return False

    return box.judge(box.zoo(*FIT, kill=Kill(signal.SIGCONT, when)), EITHER)


def folder_vanishes(box: Box) -> str:
    """The run folder is removed while the run trains: not a success without results."""
    done: list[bool] = []

    def when() -> bool:
        if not done and any(box.folder.glob("runs/*/*/checkpoints/*.ckpt")):
            shutil.rmtree(box.folder / "runs", ignore_errors=True)
            done.append(True)
        return False

    return box.judge(box.zoo(*FIT, kill=Kill(signal.SIGCONT, when)), EITHER)


def together(box: Box, *commands: tuple[str, ...]) -> list[int]:
    """Exit codes of commands that run at the same time."""
    codes = box.folder / "codes"

    def body() -> None:
        children = []
        for command in commands:
            if not (child := os.fork()):
                from zoo.commands.main import main

                sys.argv = ["zoo", *command]
                os._exit(_outcome(lambda command=command: main(list(command))))  # type: ignore[misc]
            children.append(child)
        found = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        codes.write_text(json.dumps(found))

    result = box.run(body)
    if result.has_traceback:
        raise Bad("traceback", last_line(result.err))
    box.judge(Result(result.code, result.out, "", result.seconds, result.events, result.too_large, result.left), WORKS)
    return list(json.loads(codes.read_text()))


def two_of_one_name(box: Box) -> str:
    """Two runs of one name, started in the same second: two folders."""
    found = together(box, FIT, FIT)
    silent_unless(found == [0, 0], f"exit codes {found}")
    silent_unless(len(list((box.folder / "runs" / "run").glob("*/"))) == 2, "they share a folder")
    return "survived"


def two_resume_one(box: Box) -> str:
    """Two processes resume one run: one of them has to step back."""
    box.judge(box.zoo(*FIT[:3], "--trainer.max_epochs=1"), WORKS)
    codes = together(box, RESUME, RESUME)
    rows = (the_run(box) / "metrics.csv").read_text().splitlines()
    finite_checkpoints(box.folder / "runs")
    silent_unless(sorted(codes) == [0, 2], f"both resume the same folder (exit codes {codes}, {len(rows)} log rows)")
    return "survived"


def two_prepare(box: Box) -> str:
    """Two processes prepare one corpus."""
    other = tuple("--name=other" if part == "--name=run" else part for part in FIT)
    silent_unless(together(box, FIT, other) == [0, 0], "one of them failed")
    silent_unless(metrics(the_run(box)) == metrics(the_run(box, "other")), "they have other metrics")
    return "survived"


def two_write(box: Box) -> str:
    """Two processes write one output."""
    box.write({"in.txt": "a text\n" * 300})
    command = ("predict", "--ckpt=linear.ckpt", "--input=in.txt", "--out=tags.jsonl")
    codes = together(box, command, command)
    lost_unless(len(box.lines("tags.jsonl")) == 300, f"the output is a mixture (exit codes {codes})")
    return "survived"


def children_of(process: int) -> list[int]:
    text = Path(f"/proc/{process}/task/{process}/children").read_text()
    return [int(child) for child in text.split()]


def ddp(victim: str) -> Story:
    """One of two processes is killed: the other one ends too."""

    def tell(box: Box) -> str:
        def when() -> bool:
            if not any(box.folder.glob("runs/*/*/checkpoints/last.ckpt")):
                return False
            if victim == "child":
                (own,) = [p for p in Path("/proc").iterdir() if p.name.isdigit() and _is_first(p, box.folder)]
                for child in children_of(int(own.name)):
                    if b"--trainer.devices=2" in Path(f"/proc/{child}/cmdline").read_bytes():
                        os.kill(child, signal.SIGKILL)
            return True

        number = signal.SIGKILL if victim == "parent" else signal.SIGCONT
        args = [*FIT[:3], "--trainer.max_epochs=400", "--trainer.devices=2", "--trainer.strategy=ddp"]
        result = box.python("-m", "zoo", *args, kill=Kill(number, when), timeout=400)
        if victim == "parent":  # nobody is left to say anything, so only orphans count
            result = replace(result, err="")
        return box.judge(result, ERROR if victim == "child" else EITHER, codes=(-signal.SIGKILL, 1, 143))

    return Story(tell)


def _is_first(process: Path, folder: Path) -> bool:
    try:
        place, command = os.readlink(process / "cwd"), (process / "cmdline").read_bytes()
        environment = (process / "environ").read_bytes()
    except OSError:
        return False
    return place == str(folder) and b"--trainer.devices=2" in command and b"LOCAL_RANK=1" not in environment


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    moments = [[draw.uniform(0.1, 2.5) for _ in range(2)] for _ in range(12)]
    term, interrupt = (143, -15), (130, -2)
    found = [Case(f"kill-{i}", signalled(signal.SIGKILL, moments[i], (-9,))) for i in range(3)]
    found += [Case(f"sigterm-{i}", signalled(signal.SIGTERM, moments[i + 4], term)) for i in range(2)]
    found += [Case(f"interrupt-{i}", signalled(signal.SIGINT, moments[i + 7], interrupt)) for i in range(2)]
    found += [
        Case("interrupt-group", signalled(signal.SIGINT, moments[10][:1], interrupt, group=True)),
        Case("interrupt-three-times", signalled(signal.SIGINT, moments[11][:1], interrupt, times=3)),
        Case("sigterm-three-times", signalled(signal.SIGTERM, moments[11][1:], term, times=3)),
        Case("hangup", signalled(signal.SIGHUP, moments[10][1:], (-1, 129, 143))),
        Case("cache-vanishes", Story(cache_vanishes)),
        Case("run-folder-vanishes", Story(folder_vanishes)),
        Case("two-runs-of-one-name", Story(two_of_one_name)),
        Case("two-resume-one-run", Story(two_resume_one)),
        Case("two-prepare-one-corpus", Story(two_prepare)),
        Case("two-write-one-output", Story(two_write), needs=("linear",)),
        Case("ddp-parent-killed", ddp("parent")),
        Case("ddp-child-killed", ddp("child")),
        Case("disk-full-runs", on_small_disk(*FIT, "--runs=disk", size="40k")),
        Case("disk-full-cache", on_small_disk(*FIT, env="ZOO_CACHE", size="40k")),
        Case("disk-full-temporary", on_small_disk(*FIT, *ENGINE, "--trainer.max_epochs=null", "--model.head=Parabel",
                                                  env="TMPDIR", size="8k")),
        Case("disk-full-add-labels", on_small_disk("add-labels", "--ckpt=httn.ckpt", "--input=few.jsonl",
             "--out=disk/new.ckpt", size="8k"), files={"few.jsonl": '{"text": "a", "labels": ["b"]}\n'},
             needs=("httn",)),
        Case("disk-full-convert", on_small_disk("data", "convert", "in.jsonl", "disk/out.txt", size="8k"),
             files={"in.jsonl": '{"text": "a text", "labels": ["b"]}\n' * 5000}),
        Case("disk-full-when-resumed", Story(full_when_resumed)),
    ]  # fmt: skip
    found += [Case(f"cache-{id}", cache_after(change)) for id, change in CACHES.items()]
    return found
