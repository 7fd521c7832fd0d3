"""Training throughput of `zoo fit` against a bare PyTorch loop over tensors in memory, and the share of padding.

    python benchmarks/throughput.py [reuters | eurlex57k | sample] [--documents N] [--rounds R]

Both train the model of experiments/joint_reuters.yaml for one epoch, and then rank the validation documents. The bare
loop has all padded batches in memory, and only runs forward, backward, clipping, optimizer step and topk. `fit` also
loads data, logs to csv and W&B, shows a progress bar, computes every metric and writes checkpoints. Rounds alternate.
"""

from __future__ import annotations

import argparse
import logging
import os
import tempfile
import time
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from backbones import BiLSTM
from callbacks import LastCheckpoint, RunReport, StageProgressBar, StageSchedule
from datamodules import EurLex, Reuters, Sample, TextDataModule
from heads import Linear
from zoo.training.checkpoint_io import AtomicCheckpointIO
from zoo.training.loggers import WandbSettings, close_run, make_loggers
from zoo.training.module import ZooModule

CORPORA = {"reuters": Reuters, "eurlex57k": EurLex, "sample": Sample}


def make_module(data: TextDataModule) -> ZooModule:
    pl.seed_everything(0)
    return ZooModule(data.space, lambda space: BiLSTM(space, embed_dim=100, hidden=150, dropout=0.3), Linear)


def bare_seconds(data: TextDataModule) -> float:
    """Time of an epoch and a validation pass in a bare PyTorch loop."""
    module = make_module(data)
    train, val = list(data.train_dataloader()), list(data.val_dataloader())
    optimizer = torch.optim.Adam(module.parameters())
    depth = min(100, data.space.num_labels)
    start = time.perf_counter()
    module.train()
    for batch in train:
        loss = module.head.loss(module.backbone(batch), batch.targets, "train")["loss"]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 5.0)
        optimizer.step()
    module.eval()
    with torch.inference_mode():
        for batch in val:
            module.head(module.backbone(batch)).topk(depth)
    return time.perf_counter() - start


class Clock(pl.Callback):
    """Measures the time of training, without its set-up."""

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.start = time.perf_counter()

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self.seconds = time.perf_counter() - self.start


def fit_seconds(data: TextDataModule, folder: Path) -> float:
    clock = Clock()
    trainer = pl.Trainer(
        max_epochs=1,
        logger=make_loggers(folder, "throughput", WandbSettings(mode="offline")),
        callbacks=[
            ModelCheckpoint(filename="best", monitor="val/nDCG@5", mode="max"),
            LastCheckpoint(),
            StageSchedule(),
            StageProgressBar(),
            RunReport("throughput"),
            clock,
        ],
        gradient_clip_val=5.0,
        num_sanity_val_steps=0,
        log_every_n_steps=20,
        use_distributed_sampler=False,
        enable_model_summary=False,
        plugins=[AtomicCheckpointIO()],
        default_root_dir=folder,
    )
    trainer.fit(make_module(data), datamodule=data)
    data.trainer = None
    close_run()
    return clock.seconds


def padding_share(data: TextDataModule) -> float:
    """Share of padding among the tokens of a training epoch."""
    loader = data.train_dataloader()
    lengths = loader.dataset.lengths  # type: ignore[attr-defined]
    batches = [lengths[rows] for rows in loader.sampler]  # type: ignore[union-attr]
    cells = sum(len(batch) * batch.max() for batch in batches)
    return float(1 - sum(batch.sum() for batch in batches) / cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("corpus", nargs="?", default="reuters", choices=CORPORA)
    parser.add_argument("--documents", type=int, help="maximum number of training documents")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--padding_only", action="store_true")
    given = parser.parse_args()
    logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)
    data = CORPORA[given.corpus](batch_size=32, max_length=300, limit_train=given.documents)
    print(f"{data.corpus_name}: padding {padding_share(data):.1%} of the tokens in training batches of 32")
    if given.padding_only:
        return
    size = len(data.prepared.rows("train"))
    bare, fit = [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(given.rounds):
            bare.append(bare_seconds(data))
            fit.append(fit_seconds(data, Path(folder) / str(number)))
    print(f"bare loop: {size / min(bare):.1f} documents/s; fit: {size / min(fit):.1f} documents/s")
    print(f"fit reaches {min(bare) / min(fit):.3f} of the bare loop ({os.cpu_count()} cores, best of {given.rounds})")


if __name__ == "__main__":
    main()
