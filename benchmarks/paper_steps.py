"""CPU time of a training step of each method at the papers' sizes, by part, and what the zoo's dropout gains.

    python benchmarks/paper_steps.py [METHOD ...] [--labels L] [--tokens T] [--documents B] [--steps N] [--threads N]

Random documents of T tokens with 18 labels each, 100-d word vectors, the LSTM's width as in the paper.
Parts are the encoder and the loss (forward), the backward pass, and the optimizer. `PyTorch's dropout` is the same step
with `nn.Dropout` in the encoder; the two alternate. CPU time depends less than wall-clock time on other processes.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from jobs import markdown
from torch import nn

from backbones import CNN, BiLSTM
from backbones.base import Backbone
from backbones.dropout import Dropout
from datamodules import Batch, LabelSpace, Targets
from heads import LSAN, PLT, AttentionXML, Head, Linear, PrototypeTransfer, PvaeAugmentor

PARTS = ("encoder", "loss", "backward", "optimizer")
POSITIVES = 18  # labels of a document of `bills`
WORDS = 40_000


@dataclass(frozen=True)
class Method:
    """How a method's encoder and head are made."""

    encoder: Callable[[LabelSpace], Backbone]
    head: Callable[[int, LabelSpace], Head]


def lstm(hidden: int, frozen: bool, pooling: str = "mean") -> Callable[[LabelSpace], Backbone]:
    return lambda space: BiLSTM(space, 100, hidden, pooling=pooling, freeze_embedding=frozen)  # type: ignore[arg-type]


METHODS = {
    "Joint": Method(lstm(300, False, "attention"), lambda dim, space: PrototypeTransfer(dim, space, tail_labels=0)),
    "Joint, narrow": Method(lstm(150, False, "attention"), Linear),
    "XML-CNN": Method(lambda space: CNN(space, 100, 512), Linear),
    "AttentionXML": Method(lstm(256, True), AttentionXML),
    "LSFA": Method(lstm(256, True), lambda dim, space: PvaeAugmentor(dim, space, feat_dim=None)),
    "LightAttention": Method(lstm(256, True), lambda dim, space: PLT(dim, space, hidden=[256, 256, 256], beam=16)),
    "LSAN": Method(lstm(300, False), LSAN),
}


class Step:
    """Training steps of a method on one batch."""

    def __init__(self, method: Method, space: LabelSpace, batch: Batch, stage: str) -> None:
        torch.manual_seed(0)
        self.backbone, self.batch, self.stage = method.encoder(space), batch, stage
        self.head = method.head(self.backbone.dim, space)
        self.parameters = [p for part in (self.backbone, self.head) for p in part.parameters() if p.requires_grad]
        self.optimizer = torch.optim.Adam(self.parameters)

    def __call__(self) -> list[float]:
        """CPU seconds of each part."""
        times = [time.process_time()]
        features = self.backbone(self.batch)
        times.append(time.process_time())
        loss = self.head.loss(features, self.batch.targets, self.stage)["loss"]
        times.append(time.process_time())
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        times.append(time.process_time())
        nn.utils.clip_grad_norm_(self.parameters, 5.0)
        self.optimizer.step()
        times.append(time.process_time())
        return [after - before for before, after in pairwise(times)]

    def with_torch_dropout(self) -> Step:
        """Replace the encoder's dropout by PyTorch's."""
        for module in list(self.backbone.modules()):
            for name, child in module.named_children():
                if isinstance(child, Dropout):
                    setattr(module, name, nn.Dropout(child.p))
        return self


def random_batch(documents: int, tokens: int, labels: int) -> Batch:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(2, WORDS, (documents, tokens), generator=generator)
    rows = [torch.randperm(labels, generator=generator)[:POSITIVES].sort().values.tolist() for _ in range(documents)]
    return Batch(ids, torch.ones_like(ids).bool(), Targets.from_lists(rows), torch.arange(documents))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("methods", nargs="*", metavar="METHOD", help=", ".join(METHODS))
    parser.add_argument("--labels", type=int, default=4542)
    parser.add_argument("--tokens", type=int, default=146)
    parser.add_argument("--documents", type=int, default=40)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    size = options.labels
    counts = [max(1, 4000 // (rank + 1)) for rank in range(size)]
    space = LabelSpace([f"l{label}" for label in range(size)], counts, 20_000, WORDS)
    batch, rows = random_batch(options.documents, options.tokens, size), []
    for name in options.methods or METHODS:
        steps = [Step(METHODS[name], space, batch, "main"), Step(METHODS[name], space, batch, "main")]
        steps[1].with_torch_dropout()
        for step in steps:
            step()  # the first one allocates
        start = time.perf_counter()
        found = [[step() for step in steps] for _ in range(options.steps)]
        wall = (time.perf_counter() - start) / (2 * options.steps)
        own, theirs = (torch.tensor([pair[side] for pair in found]).median(0).values for side in (0, 1))
        total = float(own.sum())
        shares = [f"{100 * float(part) / total:.0f} %" for part in own]
        times = [f"{1000 * seconds:,.0f}" for seconds in (wall, total)]
        rows.append([name, *times, *shares, f"{float(theirs.sum()) / total:.2f}"])
    print(markdown(["method", "ms", "CPU ms", *PARTS, "with PyTorch's dropout"], rows))


if __name__ == "__main__":
    main()
