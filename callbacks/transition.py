"""Transitions between stages: trainer, optimizers, DDP and checkpoints."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from inspect import signature
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from backbones import Features
from callbacks.last_checkpoint import LastCheckpoint, stop_if_requested
from callbacks.progress_bar import track
from callbacks.warmup import set_warmup_steps
from datamodules import Batch, Targets, TextDataModule
from heads import TransitionContext
from zoo.core.errors import UserError
from zoo.core.lightning_internals import callbacks_of, is_fast_dev_run, logging_step, set_ddp_default, skip_ddp
from zoo.training.known_vectors import cache_key
from zoo.training.module import ZooModule

T = TypeVar("T")
VECTORS: WeakKeyDictionary[TextDataModule, dict[str, Tensor]] = WeakKeyDictionary()  # of training documents, by encoder


class TrainerContext(TransitionContext):
    """Transition context of a run: reads documents from the datamodule and communicates through the trainer."""

    def __init__(self, trainer: Trainer, module: ZooModule, stage: str, seed: int, epoch: int = 0) -> None:
        super().__init__(backbone=module.backbone, seed=seed, epoch=epoch, first=trainer.is_global_zero)
        self.trainer, self.module, self.stage = trainer, module, stage
        if (data := TextDataModule.of(trainer)) is None:
            raise UserError(f"stage {stage!r} has a transition that reads documents: it needs a `TextDataModule`")
        self.data = data

    def train_targets(self) -> Targets:
        return self.data.train_targets()

    def train_ids(self) -> list[str]:
        return list(self.data.prepared.rows("train").ids())

    def train_words(self, lead: int = 0) -> csr_array:
        return self.data.train_words(lead)

    def augmented(self, words: csr_array, targets: Targets, rows: Tensor | None = None) -> tuple[csr_array, Targets]:
        return self.data.augmented(self.stage, words, targets, None if rows is None else rows.numpy())

    def train_features(self, rows: Tensor | None = None) -> Iterator[tuple[Features, Batch]]:
        return self._encoded(self.data.pass_dataloader("train", None if rows is None else rows.numpy()))

    def train_vectors(self, dim: int, device: torch.device) -> Tensor:
        """Computed once, unless the encoder has changed since; those of an untrained encoder are kept in the cache."""
        key = cache_key(self.module.backbone, str(self.trainer.precision))
        if key not in VECTORS.setdefault(self.data, {}):
            kept = self.trainer.global_step == 0  # no other run will have the weights of this one
            vectors = self._cached_vectors(key, dim, device) if kept else super().train_vectors(dim, device)
            VECTORS[self.data] = {key: vectors}
        return VECTORS[self.data][key]

    @torch.no_grad()
    def _cached_vectors(self, key: str, dim: int, device: torch.device) -> Tensor:
        """Map the document vectors from the cache; all processes compute those that are missing together."""

        def encode(batch: Batch) -> Tensor:
            with self.trainer.precision_plugin.forward_context():
                vectors: Tensor = self.module.backbone(batch.to(self.module.device)).pooled
            return vectors

        cache = self.data.vector_cache("train", key, dim, encode)
        world = self.trainer.world_size
        vectors = cache.load()
        found = torch.tensor(float(vectors is not None), device=device)
        everywhere = self.sum(found) == world  # a collective operation: every process decides alike
        if vectors is not None and everywhere:
            return vectors
        with self._evaluating():
            cache.compute(lambda steps: self.track(steps, "document vectors"), self.trainer.global_rank, world)
            self.sum(found)  # wait for the blocks of all others
            vectors = cache.finish()
        if self.module.known is not None:
            self.module.known.refresh()
        return vectors

    def val_targets(self) -> Targets:
        return self.data.targets("val")

    def val_features(self) -> Iterator[tuple[Features, Batch]]:
        return self._encoded(self.data.pass_dataloader("val"))

    def label_features(self, unseen: bool = False) -> Iterator[tuple[Features, Batch]]:
        return self._encoded(list(self.data.label_batches(unseen)))

    def label_batches(self, unseen: bool = False) -> Iterator[Batch]:
        return self.data.label_batches(unseen)

    @torch.no_grad()
    def _encoded(self, batches: Iterable[Batch]) -> Iterator[tuple[Features, Batch]]:
        with self._evaluating():
            for batch in self.track(batches, "reading"):
                if batch.rows[0] >= 0:  # a negative row is padding for a process without documents of its own
                    yield self._encode(batch)

    def _encode(self, batch: Batch) -> tuple[Features, Batch]:
        with self.trainer.precision_plugin.forward_context():
            features: Features = self.module(batch.to(self.module.device)).float()
        assert features.batch is not None
        return features, features.batch

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        modes = {submodule: submodule.training for submodule in self.module.modules()}
        self.module.eval()
        try:
            yield
        finally:
            for submodule, training in modes.items():
                submodule.training = training

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        for item in track(self.trainer, items, f"{self.stage}: {what}"):
            stop_if_requested(self.trainer)
            yield item

    def sum(self, value: Tensor) -> Tensor:
        # `reduce` works in place
        total = self.trainer.strategy.reduce(value.clone(), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def log(self, values: Mapping[str, float]) -> None:
        for logger in self.trainer.loggers:
            logger.log_metrics(dict(values), step=logging_step(self.trainer))


def check_strategy(trainer: Trainer) -> None:
    """Refuse sharded strategies: stages change which parameters are trained. Configure DDP for stages."""
    strategy = trainer.strategy
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy) or isinstance(strategy, DeepSpeedStrategy):
        raise UserError(
            f"{type(strategy).__name__} shards weights, which stages do not support: use `trainer.strategy=ddp`"
        )
    if isinstance(strategy, DDPStrategy):
        # DDP would broadcast all buffers in every step, even prototypes of all labels; transitions do it when needed.
        names = signature(DistributedDataParallel).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        set_ddp_default(strategy, name, False)
        if not any(p.requires_grad for p in trainer.lightning_module.parameters()):
            skip_ddp(strategy)


def rebuild_training_state(trainer: Trainer, epochs: int) -> None:
    """Make the optimizers of the current stage, once its dataloader exists.

    DDP is wrapped again, because its reducer handles only parameters that were trainable when it was created.
    """
    strategy = trainer.strategy
    if isinstance(strategy, DDPStrategy) and isinstance(strategy.model, DistributedDataParallel):
        strategy.model = strategy.lightning_module
        gc.collect()  # the old reducer removes its autograd hooks when it is destroyed
        strategy.configure_ddp()
    strategy.setup_optimizers(trainer)
    set_warmup_steps(trainer, epochs)


def count_documents(trainer: Trainer, stage: str, chosen: np.ndarray | None) -> str:
    """Format the number of training documents of a stage, and of augmented copies."""
    data = TextDataModule.of(trainer)
    rows = chosen if data is None else data.documents_of(stage, chosen)
    if data is None or rows is None:
        return "all"
    size = data.space.num_documents if chosen is None else len(chosen)
    return f"{size:,} + {len(rows) - size:,} copies" if len(rows) > size else f"{size:,}"


def reset_best_checkpoint(trainer: Trainer) -> None:
    """Forget the best score: scores of different stages are not comparable."""
    for callback in callbacks_of(trainer, ModelCheckpoint):
        if callback.monitor:
            callback.best_k_models, callback.best_model_path, callback.kth_best_model_path = {}, "", ""
            callback.best_model_score = callback.current_score = None
            callback.kth_value = torch.tensor(math.inf if callback.mode == "min" else -math.inf)


def validate_and_save(trainer: Trainer) -> None:
    """Validate the result of a last stage without epochs, and save it as the best and the last checkpoint."""
    reset_best_checkpoint(trainer)
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True
    trainer.strategy.setup_optimizers(trainer)  # a resume expects those of this stage
    save_best_if_none(trainer)
    for callback in callbacks_of(trainer, LastCheckpoint):
        callback.save(trainer)


def save_best_if_none(trainer: Trainer) -> None:
    """Save a best checkpoint if the last stage was not validated; otherwise the file would be of an earlier stage."""
    if is_fast_dev_run(trainer):
        return
    for callback in callbacks_of(trainer, ModelCheckpoint):
        if callback.monitor and callback.dirpath and not callback.best_model_path:
            callback.best_model_path = os.path.join(callback.dirpath, f"{callback.filename}.ckpt")
            trainer.save_checkpoint(callback.best_model_path, weights_only=False)


def resume_at_next_epoch(checkpoint: dict[str, Any]) -> bool:
    """Make a checkpoint of an epoch's end resume at the start of the next epoch; return whether it is one.

    Lightning would resume at the end of the old epoch instead, and skip `on_train_epoch_start`.
    """
    loop = checkpoint["loops"]["fit_loop"]
    epochs, batches = loop["epoch_progress"]["current"], loop["epoch_loop.batch_progress"]
    if epochs["processed"] < epochs["started"]:
        return False
    for progress in (epochs, loop["epoch_progress"]["total"]):
        progress["completed"] = progress["processed"]
    batches["is_last_batch"] = False
    batches["current"] = dict.fromkeys(batches["current"], 0)
    return True


def broadcast_state(trainer: Trainer, module: nn.Module) -> None:
    """Copy the state of rank 0 to all ranks: sums may differ in the last bit."""
    if trainer.world_size > 1:
        for submodule in module.modules():  # extra states have no fixed size, such as the weights of a linear engine
            if type(submodule).get_extra_state is not nn.Module.get_extra_state:
                state = [submodule.get_extra_state() if trainer.is_global_zero else None]
                torch.distributed.broadcast_object_list(state, src=0)
                if not trainer.is_global_zero:
                    submodule.set_extra_state(state[0])
        for value in module.state_dict().values():
            if isinstance(value, Tensor):
                torch.distributed.broadcast(value, src=0)


def gather_objects(trainer: Trainer, value: T) -> list[T]:
    """Gather a value from all processes."""
    if trainer.world_size == 1:
        return [value]
    gathered = [value] * trainer.world_size
    torch.distributed.all_gather_object(gathered, value)
    return gathered


def frozen_modules(module: nn.Module) -> list[nn.Module]:
    """Find submodules in training mode whose parameters are all frozen, and everything inside them."""
    frozen: dict[nn.Module, None] = {}  # an ordered set
    for submodule in module.modules():
        trained = [p.requires_grad for p in submodule.parameters()]
        if trained and not any(trained):
            frozen |= dict.fromkeys(submodule.modules())
    return [submodule for submodule in frozen if submodule.training]


def trained_state(module: LightningModule) -> Iterator[tuple[str, Tensor]]:
    """Yield all that a stage may change: trained parameters, under each of their names, and saved buffers."""
    yield from ((name, p) for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad)
    saved = module.state_dict()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in saved)


def derive_seed(*keys: int) -> int:
    """Combine integers into a seed: a batch draws the same random numbers after a resume."""
    seed = 0
    for key in keys:
        seed = (seed * 1_000_003 + key + 1) % 2**63
    return seed
