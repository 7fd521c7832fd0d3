"""Time and peak memory of label attention, forward and backward: the zoo's blocks, plain PyTorch, LibMultiLabel.

    python benchmarks/label_attention.py [--peer PYTHON] [--labels L] [--only zoo] [--rounds R]

`--peer` is the interpreter of another environment with `pip install libmultilabel`. The attention is followed by `mlp`
(AttentionXML's shared layers), `project` (LSFA's shared ReLU layer and one vector per label) or `linear` (one vector
per label). Measurements alternate between the forms, each in its own process and with the same inputs. Memory is the
peak of the process minus inputs and parameters; their gradients are included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTHS = {"mlp": 256, "project": 300, "linear": None}
Step = Callable[[Tensor], Tensor]


def zoo_form(options: Any, targets: list[list[int]]) -> Step:
    from backbones import Features
    from datamodules import LabelSpace, Targets
    from heads import AttentionXML, PvaeAugmentor

    counts = [100] * options.labels
    space = LabelSpace(names=[str(i) for i in range(options.labels)], counts=counts, num_documents=1000, vocab_size=2)
    if options.after == "mlp":
        head: nn.Module = AttentionXML(options.dim, space, hidden=[256])
    else:
        head = PvaeAugmentor(options.dim, space, feat_dim=WIDTHS[options.after], samples=0)
    mask, truth = torch.ones(options.documents, options.tokens, dtype=torch.bool), Targets.from_lists(targets)
    return lambda x: head.loss(Features(x, mask, x[:, 0], (x,)), truth, "")["loss"]  # type: ignore[operator,no-any-return]


def plain_form(options: Any, targets: list[list[int]]) -> Step:
    query = nn.Parameter(nn.init.xavier_uniform_(torch.empty(options.labels, options.dim)))
    classify, mask = after_attention(options), torch.ones(options.documents, 1, options.tokens, dtype=torch.bool)
    truth = dense(targets, options.labels)

    def step(x: Tensor) -> Tensor:
        scores = query @ x.transpose(1, 2)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
        attended = weights @ x
        return bce(classify(attended), truth)

    return step


def libmultilabel_form(options: Any, targets: list[list[int]]) -> Step:
    from libmultilabel.nn.networks.modules import LabelwiseAttention

    attention, classify = LabelwiseAttention(options.dim, options.labels), after_attention(options)
    nn.init.xavier_uniform_(attention.attention.weight)
    truth = dense(targets, options.labels)
    return lambda x: bce(classify(attention(x)[0]), truth)


FORMS = {"zoo": zoo_form, "plain": plain_form, "libmultilabel": libmultilabel_form}


def after_attention(options: Any) -> Callable[[Tensor], Tensor]:
    width = WIDTHS[options.after]
    if options.after == "mlp":
        return nn.Sequential(nn.Linear(options.dim, 256), nn.ReLU(), nn.Linear(256, 1), nn.Flatten(1))
    project = nn.Sequential(nn.Linear(options.dim, width), nn.ReLU()) if width else nn.Identity()
    weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(options.labels, width or options.dim)))
    return lambda attended: (project(attended) * weight).sum(-1)


def dense(targets: list[list[int]], labels: int) -> Tensor:
    truth = torch.zeros(len(targets), labels)
    for row, positive in enumerate(targets):
        truth[row, positive] = 1.0
    return truth


def bce(logits: Tensor, truth: Tensor) -> Tensor:
    return F.binary_cross_entropy_with_logits(logits, truth, reduction="sum") / len(truth)


def measure(options: Any) -> None:
    """Measure the fastest step and the peak memory of this process."""
    torch.manual_seed(0)
    targets = [[(37 * row + 101 * i) % options.labels for i in range(5)] for row in range(options.documents)]
    step = FORMS[options.form](options, targets)
    x = torch.randn(options.documents, options.tokens, options.dim).mul_(options.sharpness).requires_grad_()
    seconds, before = [], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(options.steps):
        x.grad = None
        start = time.perf_counter()
        loss = step(x)
        loss.backward()  # type: ignore[no-untyped-call]
        seconds.append(time.perf_counter() - start)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"seconds": min(seconds), "megabytes": (peak - before) / 1024, "process": peak / 1024}
    print(json.dumps(found | {"loss": loss.item(), "torch": torch.__version__}))


def in_process(options: Any, form: str, after: str) -> dict[str, Any]:
    python = options.peer if form == "libmultilabel" else sys.executable
    numbers = [
        f"--{name}={getattr(options, name)}" for name in ("documents", "tokens", "dim", "labels", "steps", "sharpness")
    ]
    command = [python, __file__, f"--form={form}", f"--after={after}", *numbers]
    found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return found


def compare(options: Any) -> None:
    forms = options.only or ["zoo", "plain", *(["libmultilabel"] if options.peer else [])]
    print(f"{options.documents} documents x {options.tokens} tokens x {options.dim} x {options.labels:,} labels")
    names = ["after attention", "form", "s", "MB", "time / zoo", "memory / zoo", "whole process, MB", "loss"]
    print(f"| {' | '.join(names)} |\n|{'---|' * len(names)}")
    for after in options.afters:
        best: dict[str, dict[str, Any]] = {}
        for _ in range(options.rounds):
            for form in forms:
                found = in_process(options, form, after)
                best[form] = min(best.get(form, found), found, key=lambda one: float(one["seconds"]))
        for form, found in best.items():
            ratios = [found[name] / best[forms[0]][name] for name in ("seconds", "megabytes")]
            cells = [after, f"{form}, torch {found['torch']}", f"{found['seconds']:.2f}", f"{found['megabytes']:.0f}"]
            cells += [*(f"{ratio:.2f}" for ratio in ratios), f"{found['process']:.0f}", f"{found['loss']:.4f}"]
            print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--documents", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--labels", type=int, default=3956)
    parser.add_argument(
        "--sharpness", type=float, default=1.0, help="factor of the token states; large values give sharp attention"
    )
    parser.add_argument("--steps", type=int, default=3, help="steps per process; the fastest counts")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--afters", nargs="+", default=list(WIDTHS), choices=WIDTHS)
    parser.add_argument("--only", nargs="+", choices=FORMS)
    parser.add_argument("--peer", help="Python interpreter with libmultilabel")
    parser.add_argument("--form", choices=FORMS, help=argparse.SUPPRESS)
    parser.add_argument("--after", choices=WIDTHS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    measure(options) if options.form else compare(options)


if __name__ == "__main__":
    main()
