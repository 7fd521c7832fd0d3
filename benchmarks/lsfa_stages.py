"""Time of LSFA's stages: the feature bank against a bare encoder pass, the last stages against an epoch of the first.

    python benchmarks/lsfa_stages.py [reuters | eurlex57k | sample] [--documents N] [--max_length T] [--rounds R]

The model has the settings of experiments/lsfa_eurlex.yaml. An epoch consists of the pass that computes prototypes, and
of loading, forward, backward, clipping and the optimizer step for all training documents, with the contrastive loss.
The autoencoder and the classifiers are trained as in the experiment. There is no validation.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from typing import Any

import torch
from prototypes import CORPORA, Context
from torch import nn

from backbones import BiLSTM
from heads import PvaeAugmentor
from heads.augment.pvae import PVAETraining

ADJUST_EPOCHS = 2


def epoch(context: Context, head: PvaeAugmentor, trained: list[nn.Parameter]) -> None:
    optimizer = torch.optim.Adam(trained, lr=3e-3, fused=True)
    for batch in context.data.train_dataloader():
        optimizer.zero_grad()
        head.loss(context.backbone(batch), batch.targets, "")["loss"].backward()
        nn.utils.clip_grad_norm_(trained, 5.0)
        optimizer.step()


def first_stage(context: Context, head: PvaeAugmentor) -> None:
    head.refresh_prototypes(context)
    modules = (context.backbone.train().requires_grad_(True), head.requires_grad_(True))
    head.pvae.requires_grad_(False)
    epoch(context, head, [p for module in modules for p in module.parameters() if p.requires_grad])
    context.backbone.eval()


def last_stages(context: Context, head: PvaeAugmentor) -> None:
    head.train_pvae(context)
    head.start_adjustment(context)
    context.backbone.requires_grad_(False)
    head.requires_grad_(False).classifier.requires_grad_(True)
    for _ in range(ADJUST_EPOCHS):
        epoch(context, head, list(head.classifier.parameters()))


@torch.no_grad()
def encoder_pass(context: Context) -> None:
    deque(context.train_features(), maxlen=0)


def seconds(task: Any, *args: Any) -> float:
    start = time.perf_counter()
    task(*args)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", default="eurlex57k", choices=CORPORA)
    parser.add_argument("--documents", type=int)
    parser.add_argument("--max_length", type=int, default=200)
    parser.add_argument("--head_count", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--bank_only", action="store_true")
    options = parser.parse_args()
    data = CORPORA[options.corpus](max_length=options.max_length, batch_size=40, limit_train=options.documents)
    print(f"{data.corpus_name}: {data.space.num_documents:,} documents, {data.space.num_labels:,} labels")
    for _ in range(options.rounds):
        torch.manual_seed(0)
        backbone = BiLSTM(data.space, embed_dim=100, hidden=128, dropout=0.3, pooling="mean").eval()
        training = PVAETraining(epochs=15, batch_size=128, lr=1e-3, patience=3)
        settings = {"negatives": 500, "bias": True, "restart": "warm", "head_count": options.head_count}
        head = PvaeAugmentor(backbone.dim, data.space, feat_dim=None, pvae=training, **settings)
        context = Context(data, backbone)
        bare, bank = seconds(encoder_pass, context), seconds(head.collect_bank, context)
        print(f"encoder pass {bare:.1f} s, bank {bank:.1f} s: {bank / bare:.3f}", flush=True)
        if not options.bank_only:
            one, last = seconds(first_stage, context, head), seconds(last_stages, context, head)
            print(f"epoch {one:.1f} s, autoencoder and adjustment {last:.1f} s: {last / one:.3f}", flush=True)


if __name__ == "__main__":
    main()
