"""What happens between two stages, in terms of Lightning's trainer."""

from __future__ import annotations

import gc
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from inspect import signature
from typing import Any, TypeVar

import numpy as np
import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.strategies import DDPStrategy, DeepSpeedStrategy, SingleDeviceStrategy
from scipy.sparse import csr_array
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from backbones import Backbone, Features
from callbacks.last import LastCheckpoint, stop_if_asked
from callbacks.progress import tracked
from callbacks.warmup import tell_steps
from datamodules import Batch, Targets, TextDataModule
from datamodules.errors import UserError

T = TypeVar("T")


class TrainerContext:
    """What a head may use in a transition (`heads.TransitionContext`). Every method is called on every process."""

    def __init__(self, trainer: Trainer, module: LightningModule, stage: str, seed: int, epoch: int = 0) -> None:
        self.trainer, self.module, self.stage, self.seed, self.epoch = trainer, module, stage, seed, epoch
        assert isinstance(module.backbone, Backbone)
        self.backbone, self.first = module.backbone, trainer.is_global_zero
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(data, TextDataModule):
            raise UserError(f"a transition of stage {stage!r} reads documents: that needs a datamodule of the zoo")
        self.data = data

    def train_targets(self) -> Targets:
        return self.data.train_targets()

    def train_words(self, lead: int = 0) -> csr_array:
        return self.data.train_words(lead)

    def augmented(self, words: csr_array, targets: Targets, rows: Tensor | None = None) -> tuple[csr_array, Targets]:
        return self.data.augmented(self.stage, words, targets, None if rows is None else rows.numpy())

    def train_features(self, rows: Tensor | None = None) -> Iterator[tuple[Features, Batch]]:
        return self._features(self.data.pass_dataloader("train", None if rows is None else rows.numpy()))

    def val_targets(self) -> Targets:
        return self.data.targets("val")

    def val_features(self) -> Iterator[tuple[Features, Batch]]:
        return self._features(self.data.pass_dataloader("val"))

    def label_features(self) -> Iterator[tuple[Features, Batch]]:
        return self._features(list(self.data.label_batches()))

    @torch.no_grad()
    def _features(self, batches: Iterable[Batch]) -> Iterator[tuple[Features, Batch]]:
        modes = {part: part.training for part in self.module.modules()}
        self.module.eval()
        try:
            for batch in self.track(batches, "reading"):
                if batch.rows[0] >= 0:  # otherwise a repeat, for a process that has none of the last documents
                    batch = batch.to(self.module.device)
                    with self.trainer.precision_plugin.forward_context():
                        features = self.module(batch)
                    yield features.float(), batch
        finally:
            for part, training in modes.items():
                part.training = training

    def track(self, items: Iterable[T], what: str) -> Iterator[T]:
        for item in tracked(self.trainer, items, f"{self.stage}: {what}"):
            stop_if_asked(self.trainer)
            yield item

    def sum(self, value: Tensor) -> Tensor:
        # a copy: `reduce` works in place
        total = self.trainer.strategy.reduce(value.clone(), reduce_op="sum")
        assert isinstance(total, Tensor)
        return total

    def log(self, values: Mapping[str, float]) -> None:
        for logger in self.trainer.loggers:
            logger.log_metrics(dict(values), step=self.trainer.fit_loop.epoch_loop._batches_that_stepped)


def check_strategy(trainer: Trainer) -> None:
    """Stages change what is trained: sharded parameters and optimizers cannot follow."""
    strategy = trainer.strategy
    if not isinstance(strategy, SingleDeviceStrategy | DDPStrategy) or isinstance(strategy, DeepSpeedStrategy):
        raise UserError(f"{type(strategy).__name__} cannot be used: stages need whole weights on each device, take ddp")
    if isinstance(strategy, DDPStrategy):
        # DDP would send all buffers in every step, prototypes of all labels among them: transitions make them equal.
        names = signature(DistributedDataParallel).parameters
        name = "forward_sync_buffers" if "forward_sync_buffers" in names else "broadcast_buffers"
        strategy._ddp_kwargs.setdefault(name, False)
        if not any(p.requires_grad for p in trainer.lightning_module.parameters()):
            strategy.configure_ddp = lambda: None  # type: ignore[method-assign]  # it refuses what has no gradients


def rebuild_training_state(trainer: Trainer, epochs: int) -> None:
    """Optimizers for the present stage, whose data is loaded by now.

    Under DDP also a new reducer, for it fixes its parameters when it is made.
    """
    strategy = trainer.strategy
    if isinstance(strategy, DDPStrategy) and isinstance(strategy.model, DistributedDataParallel):
        strategy.model = strategy.lightning_module
        gc.collect()  # the old reducer takes its autograd hooks away when it is destroyed
        strategy.configure_ddp()
    strategy.setup_optimizers(trainer)
    tell_steps(trainer, epochs)


def count_documents(trainer: Trainer, stage: str, chosen: np.ndarray | None) -> str:
    """On how many documents a stage trains, and on how many copies of some of them."""
    data = trainer.datamodule  # type: ignore[attr-defined]
    rows = data.documents_of(stage, chosen) if isinstance(data, TextDataModule) else chosen
    if rows is None:
        return "all"
    size = data.space.num_documents if chosen is None else len(chosen)
    return f"{size:,} + {len(rows) - size:,} copies" if len(rows) > size else f"{size:,}"


def reload_training_data(trainer: Trainer) -> None:
    """Batches of the documents that are chosen now."""
    loop = trainer.fit_loop
    loop.restarting = False  # or the new loader would skip what was seen of the old one
    loop._combined_loader = None
    loop.setup_data()


def forget_best(trainer: Trainer) -> None:
    """What was best in one stage is no measure for the next."""
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor:
            callback.best_k_models, callback.best_model_path, callback.kth_best_model_path = {}, "", ""
            callback.best_model_score = callback.current_score = None
            callback.kth_value = torch.tensor(math.inf if callback.mode == "min" else -math.inf)


def measure_and_save(trainer: Trainer) -> None:
    """A last stage without epochs: its result is validated, and becomes the best and the last checkpoint."""
    forget_best(trainer)
    trainer.validating = True
    trainer.fit_loop.epoch_loop.val_loop.run()
    trainer.training = True
    trainer.strategy.setup_optimizers(trainer)  # the ones that a resume expects
    save_best_if_none(trainer)
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, LastCheckpoint):
            callback.save(trainer)


def save_best_if_none(trainer: Trainer) -> None:
    """Where no epoch of the last stage was validated: the file of an earlier stage must not pass for its best."""
    if trainer.fast_dev_run:  # type: ignore[attr-defined]
        return
    for callback in trainer.checkpoint_callbacks:
        if isinstance(callback, ModelCheckpoint) and callback.monitor and callback.dirpath:
            path = os.path.join(callback.dirpath, f"{callback.filename}.ckpt")
            if not callback.best_model_path:
                callback.best_model_path = path
                trainer.save_checkpoint(path, weights_only=False)


def from_epoch_start(checkpoint: dict[str, Any]) -> bool:
    """A checkpoint from an epoch's end resumes where the next one begins; returns whether it is one.

    Lightning would take up the rest of the old epoch instead, and leave out `on_train_epoch_start`.
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


def same_on_all_processes(trainer: Trainer, module: nn.Module) -> None:
    """Sums may differ in the last bit from process to process: the first one's result holds."""
    if trainer.world_size > 1:
        for part in module.modules():  # what has no fixed size, such as the weights of a linear engine
            if type(part).get_extra_state is not nn.Module.get_extra_state:
                state = [part.get_extra_state() if trainer.is_global_zero else None]
                torch.distributed.broadcast_object_list(state, src=0)
                if not trainer.is_global_zero:
                    part.set_extra_state(state[0])
        for value in module.state_dict().values():
            if isinstance(value, Tensor):
                torch.distributed.broadcast(value, src=0)


def parts_at_rest(module: nn.Module) -> list[nn.Module]:
    """Parts in training mode that have parameters and train none of them, with all that is in them."""
    resting: dict[nn.Module, None] = {}  # in order, each once
    for part in module.modules():
        trained = [p.requires_grad for p in part.parameters()]
        if trained and not any(trained):
            resting |= dict.fromkeys(part.modules())
    return [part for part in resting if part.training]


def averaged(module: nn.Module) -> dict[nn.Parameter, Tensor]:
    """The averages that a module keeps of its parameters; empty where there are none."""
    return module.averaged  # type: ignore[return-value]


@torch.no_grad()
def use_average(module: nn.Module) -> None:
    """The average becomes the module's weights, and ends."""
    for parameter, mean in averaged(module).items():
        parameter.copy_(mean)
    averaged(module).clear()


def trained_state(module: LightningModule) -> Iterator[tuple[str, Tensor]]:
    """All that a stage may change: its parameters, by all of their names, and buffers."""
    yield from ((name, p) for name, p in module.named_parameters(remove_duplicate=False) if p.requires_grad)
    saved = module.state_dict()
    yield from ((name, buffer) for name, buffer in module.named_buffers() if name in saved)


def step_seed(*parts: int) -> int:
    """A seed of its own for each combination: what is random in a batch is the same after a resume."""
    value = 0
    for part in parts:
        value = (value * 1_000_003 + part + 1) % 2**63
    return value
