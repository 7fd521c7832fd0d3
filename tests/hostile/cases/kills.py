"""SIGKILL at random times in runs of several stages: what is resumed equals an uninterrupted run, bit for bit."""

from __future__ import annotations

import json
import random
import shutil
import signal
from pathlib import Path

import torch

from tests.ddp.runs import LSFA, STAGED, tensors
from tests.hostile.case import WORKS, Bad, Box, Case, Story, lost_unless
from tests.hostile.cases.faults import after, finite_checkpoints, the_run
from tests.hostile.sandbox import Kill

KILLS = 10  # of each method
METHODS = {
    "httn": STAGED.replace("fragile.Fragile", "PrototypeTransfer").replace("    each_epoch: [shake]\n", ""),
    "lsfa": LSFA.replace("fragile.FragileAugmentor", "PvaeAugmentor"),
}


def killed(method: str, moments: list[float]) -> Story:
    """Kill a run once at each moment, given as a share of the whole run, and resume it to its end."""

    def tell(box: Box) -> str:
        box.write({"staged.yaml": METHODS[method]})
        argv = ["fit", "--config=staged.yaml"]
        whole = box.zoo(*argv, "--name=whole", timeout=300)
        box.judge(whole, WORKS)
        done = 0
        for moment in moments:
            kill = Kill(signal.SIGKILL, after(moment * whole.seconds))
            result = box.zoo(*argv, "--name=run", "--ckpt_path=last", kill=kill, timeout=300)
            if result.code not in (0, -signal.SIGKILL):
                raise Bad("untidy", f"exit code {result.code}")
            done += result.code != 0
            if (box.folder / "runs" / "run").exists():
                finite_checkpoints(the_run(box))
            box.judge(box.zoo(*argv, "--name=run", "--ckpt_path=last", timeout=300), WORKS)
            check_same(the_run(box, "whole"), the_run(box))
            shutil.rmtree(box.folder / "runs" / "run")
        if done < len(moments) // 2:
            raise Bad("broken case", f"{len(moments) - done} of {len(moments)} runs had ended before they were killed")
        return "survived"

    return Story(tell)


def check_same(one: Path, other: Path) -> None:
    """Refuse any difference in the checkpoints and metrics of two runs."""
    files = [{path.name for path in run.glob("checkpoints/[!.]*.ckpt")} for run in (one, other)]
    lost_unless(files[0] == files[1], f"checkpoints {sorted(files[1])} instead of {sorted(files[0])}")
    for file in files[0]:
        first, second = (torch.load(run / "checkpoints" / file, weights_only=True) for run in (one, other))
        for name in ("epoch", "global_step"):
            lost_unless(first[name] == second[name], f"{file}: {name} is {second[name]} instead of {first[name]}")
        lost_unless(first["state_dict"].keys() == second["state_dict"].keys(), f"{file} has other weights")
        for name, value in first["state_dict"].items():
            pairs = zip(tensors(value), tensors(second["state_dict"][name]), strict=True)
            lost_unless(all(torch.equal(*pair) for pair in pairs), f"{file}: {name} differs")
    metrics = [json.loads((run / "metrics.json").read_text())["metrics"] for run in (one, other)]
    lost_unless(metrics[0] == metrics[1], "the metrics differ")


def cases(seed: int) -> list[Case]:
    draw = random.Random(seed)
    return [Case(method, killed(method, [draw.random() for _ in range(KILLS)])) for method in METHODS]
