"""The one LightningModule: a backbone under a head."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MeanMetric

from backbones import Backbone, Features
from callbacks import Stage, WarmupDecay
from datamodules import Batch, LabelSpace, TextDataModule
from datamodules.errors import UserError, first_line
from datamodules.prepare import SPLITS
from datamodules.progress import note
from datamodules.vocab import Vocabulary
from heads import Head, Ranking
from zoo.metrics import RankingMetrics
from zoo.optimizers import check_optimizer, check_others, clip, has_rows, row_parameters, sharing

MANY_TERMS = 5  # of a loss: the progress bar shows the sum alone
OF_PARTS = ("P@", "nDCG@", "PSP@", "PSnDCG@", "macroF@")  # metrics of a head's parts


class ZooModule(pl.LightningModule):
    """Trains a head on a backbone, and measures its rankings.

    Args:
        space: facts of the corpus; comes from the datamodule.
        backbone: encoder of documents.
        head: what scores labels.
        optimizer: made anew for the parameters of each stage that has none of its own.
        lr_scheduler: goes with `optimizer`, stepped after each epoch; `WarmupDecay` after each step.
        depth: how many labels of a document are ranked for the metrics; F1 counts what is among them.
    """

    def __init__(
        self,
        space: LabelSpace,
        backbone: Callable[[LabelSpace], Backbone],
        head: Callable[[int, LabelSpace], Head],
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        depth: int = 100,
    ) -> None:
        super().__init__()
        if depth < 5:
            raise UserError(f"--model.depth={depth} is too small for metrics at 5")
        self.space, self.depth = space, depth
        self.backbone = backbone(space)
        self.head = head(self.backbone.dim, space)
        if self.head.needs_tokens and not self.backbone.has_tokens:
            raise UserError(
                f"{type(self.head).__name__} reads token states and {type(self.backbone).__name__} has none: "
                "choose another backbone with --model.backbone"
            )
        if self.head.needs_layers > self.backbone.num_layers:
            raise UserError(
                f"{type(self.head).__name__} reads {self.head.needs_layers} layers and {type(self.backbone).__name__} "
                f"has {self.backbone.num_layers}: let it read fewer, or choose another with --model.backbone"
            )
        self.make_optimizer, self.make_scheduler = optimizer, lr_scheduler
        self.val_metrics, self.test_metrics = RankingMetrics(space), RankingMetrics(space)
        self.part_metrics: dict[str, RankingMetrics] = {}  # by name of the head's part, made when it is first measured
        self.checks: dict[str, MeanMetric] = {}  # the head's own numbers, likewise
        self.stage = Stage("main")  # `StageSchedule` moves it on
        self.finite = torch.tensor(True)
        self.averaged: dict[nn.Parameter, Tensor] = {}  # what a checkpoint has in their place; by `StageAveraging`
        # What a checkpoint carries beside weights, so that it can be rebuilt from the file alone.
        self.config_text: str | None = None
        self.vocabulary: Vocabulary | None = None
        self.origin: dict[str, Any] = {}  # of the checkpoint that it was rebuilt from: version, epoch and step
        self.start: dict[str, Any] | None = None  # checkpoint to take weights from when training begins

    @property
    def threshold(self) -> float:
        """The score above which a label is best called true, as measured on validation documents."""
        return float(self.test_metrics.tuned_threshold)

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """DDP reads them when it is made: it would send sparse gradients as such, which NCCL cannot."""
        rows = row_parameters(self)
        check_others({name: p for name, p in self.named_parameters() if p.requires_grad}, rows, self.stage.name)
        return list(rows)

    def forward(self, batch: Batch) -> Features:
        features: Features = self.backbone(batch)
        return replace(features, batch=batch)

    def take_labels(self, head: Head, space: LabelSpace) -> None:
        """Go on with a head that has learned the labels of `space`; the tuned threshold stays."""
        metrics = [RankingMetrics(space).to(self.device) for _ in range(2)]
        for new in metrics:
            new.tuned_threshold.fill_(self.threshold)
        self.val_metrics, self.test_metrics = metrics
        self.head, self.space = head, space

    def setup(self, stage: str) -> None:
        if self.trainer.strategy.root_device.type == "mps":
            raise UserError("Apple's GPUs have no double precision, which metrics need: give --trainer.accelerator=cpu")
        data = self.trainer.datamodule  # type: ignore[attr-defined]
        if isinstance(data, TextDataModule):
            self.vocabulary = fitting_vocabulary(data, self.backbone.max_length)
            mine = data.prepared.folder.name, data.space.texts
            same = self.trainer.strategy.broadcast(mine) == mine
            if not self.trainer.strategy.reduce_boolean_decision(same, all=True):  # all end, or the others would wait
                raise UserError(f"processes have different corpora, this one {data.corpus_name}: prepare it once alone")
            if stage == "fit" and (vectors := data.word_vectors()) is not None:
                self.backbone.load_vectors(vectors.matrix)
            if stage == "fit" and self.backbone.reads_counts:
                self.backbone.learn_counts(data.train_words())
            if stage == "fit" and self.vocabulary.has_values and not self.backbone.reads_values:
                kind = type(self.backbone).__name__
                note(f"{kind} reads which features a document has, not their values; Bow reads both")
        if stage == "fit" and self.start is not None:
            self.on_load_checkpoint(self.start)
            take_weights(self, self.start["state_dict"])

    def on_fit_start(self) -> None:
        if self.trainer.world_size > 1:  # DDP does it for all others
            for parameter in row_parameters(self).values():
                torch.distributed.broadcast(parameter.detach(), src=0)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        stage, features = self.stage.name, self(batch)
        terms = self.head.loss(features, batch.targets, stage)
        if not terms["loss"].requires_grad:
            raise UserError(f"stage {stage!r}: its loss depends on nothing that it trains; see its `trainable`")
        for name, value in terms.items():
            key = f"train/{stage}/{name}"
            in_bar = name == "loss" or len(terms) < MANY_TERMS
            self.log(key, value.detach(), on_step=True, on_epoch=True, prog_bar=in_bar, batch_size=len(batch))
        self.finite = self.finite.to(self.device) & terms["loss"].detach().isfinite()
        # DDP waits for a gradient of all that is trained: also of a pooling that the head does not read.
        return terms["loss"] + 0 * features.pooled[0, 0] if self.trainer.world_size > 1 else terms["loss"]

    def rank(self, batch: Batch, k: int) -> Ranking:
        """The k best labels of each document."""
        return self.head.rank(self(batch), k)

    def on_validation_start(self) -> None:
        # Before a checkpoint is written. Rankings hide it: they are finite whatever the weights are.
        if not self.trainer.strategy.reduce_boolean_decision(bool(self.finite), all=True):
            raise UserError("the loss is no longer finite: lower the learning rate, --model.optimizer.lr")

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        return {"ranking": self._measure(self.val_metrics, batch)}  # for callbacks

    def test_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        return {"ranking": self._measure(self.test_metrics, batch)}

    def _measure(self, metrics: RankingMetrics, batch: Batch) -> Ranking:
        features, counted = self(batch), batch.rows >= 0
        rankings = self.head.rankings(features, min(self.depth, self.space.num_labels))
        for name, ranking in rankings.items():
            if name and name not in self.part_metrics:
                self.part_metrics[name] = RankingMetrics(self.space).to(self.device)
            measured = self.part_metrics[name] if name else metrics
            measured.update(ranking.scores, ranking.labels, batch.targets, counted=counted)
        for name, values in self.head.checks(features, batch.targets).items():
            if name not in self.checks:
                self.checks[name] = MeanMetric(nan_strategy="ignore").to(self.device)
            self.checks[name].update(values[counted])
        return rankings[""]

    def _measure_parts(self, split: str) -> None:
        """Log what matters of the head's parts, each under its name, and the head's own numbers."""
        for name, mean in self.checks.items():
            self.log(f"{split}/{name}", mean.compute())
            mean.reset()
        for part, metrics in self.part_metrics.items():
            for name, value in metrics.compute().items():
                if name.startswith(OF_PARTS) and "/bin" not in name:
                    self.log(f"{split}/{part}/{name}", value.float())
            metrics.reset()

    def on_validation_epoch_end(self) -> None:
        values = self.val_metrics.compute()
        bars = {"nDCG@5", "P@1"}
        for name, value in values.items():
            if "/bin" not in name:
                self.log(f"val/{name}", value.float(), prog_bar=name in bars)
        self.log("val/threshold", self.threshold)  # the one that F1@tuned was counted at
        if not self.trainer.sanity_checking:
            threshold = self.val_metrics.best_threshold()
            self.val_metrics.tuned_threshold.fill_(threshold)
            self.test_metrics.tuned_threshold.fill_(threshold)
        self.val_metrics.reset()
        self._measure_parts("val")

    def on_test_epoch_end(self) -> None:
        self.log_dict({f"test/{name}": value.float() for name, value in self.test_metrics.compute().items()})
        self.log("test/threshold", self.threshold)
        self.test_metrics.reset()
        self._measure_parts("test")

    def configure_optimizers(self) -> Any:
        parameters = {name: p for name, p in self.named_parameters() if p.requires_grad}
        return self.optimizer_of(self.stage, parameters) if parameters else None  # a linear engine has none

    def optimizer_of(self, stage: Stage, parameters: dict[str, nn.Parameter]) -> dict[str, Any]:
        """A new optimizer and scheduler, as a stage wants them."""
        make_scheduler = stage.lr_scheduler or (None if stage.optimizer else self.make_scheduler)
        try:
            optimizer = (stage.optimizer or self.make_optimizer)(stage.parameter_groups(parameters))
            # Lightning refuses to clip for an optimizer that can unscale gradients itself, as fused ones say they can.
            optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]
            scheduler = make_scheduler(optimizer) if make_scheduler else None
        except (TypeError, ValueError) as error:
            reason = first_line(error)
            raise UserError(f"stage {stage.name!r}: optimizer or scheduler cannot be made: {reason}") from error
        if any(group["lr"] < 0 for group in optimizer.param_groups):
            raise UserError(f"stage {stage.name!r}: a learning rate is negative")
        rows = row_parameters(self)
        check_optimizer(optimizer, rows, f"--stages.{stage.name}.optimizer" if stage.optimizer else "--model.optimizer")
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            check_others(parameters, rows, stage.name)
        if scheduler is None:
            return {"optimizer": optimizer}
        interval = "step" if isinstance(scheduler, WarmupDecay) else stage.lr_interval
        config = {"scheduler": scheduler, "interval": interval, "monitor": stage.monitor}
        return {"optimizer": optimizer, "lr_scheduler": config}

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        # In `on_before_optimizer_step` a scaler has looked for infinite gradients already: each process for its own.
        closure = sharing(self, optimizer_closure) if self.trainer.world_size > 1 else optimizer_closure
        super().optimizer_step(epoch, batch_idx, optimizer, closure)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any(has_rows(p) for p in parameters):
            clip(parameters, gradient_clip_val or 0, gradient_clip_algorithm or "norm")
        else:
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name, parameter in self.named_parameters(remove_duplicate=False):
            if parameter in self.averaged:
                checkpoint["state_dict"][name] = self.averaged[parameter]
        # plain values only: the file must open with torch.load(weights_only=True)
        vocabulary = self.vocabulary
        checkpoint["zoo"] = {
            "config": self.config_text,
            "backbone": self.backbone.self_contained(),
            "space": dict(vars(self.space)),
            "tokenizer": vocabulary.text if vocabulary else None,
            "max_length": vocabulary.max_length if vocabulary else None,
        }

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "zoo" not in checkpoint:
            raise UserError("this checkpoint was not written by zoo fit")
        stored = checkpoint["zoo"]
        if added := stored["space"].get("added", 0):
            raise UserError(
                f"the checkpoint learned {added:,} labels after its training, which its corpus does not have: it can "
                "predict and learn more; for all else give the checkpoint that they were added to"
            )
        if self.trainer.state.fn == "fit" and checkpoint is not self.start and "optimizer_states" not in checkpoint:
            raise UserError("the checkpoint has weights only: begin a stage with them, --from_stage NAME --ckpt F")
        if stored["space"]["names"] != self.space.names:
            raise UserError("the checkpoint was trained on other labels: give it the corpus that it was trained on")
        if self.vocabulary and stored["tokenizer"] != self.vocabulary.text:
            raise UserError("the checkpoint was trained with another vocabulary: give it its own corpus and tokenizer")


def fitting_vocabulary(data: TextDataModule, limit: int | None) -> Vocabulary:
    """The corpus's; it cuts whatever comes later to what the encoder can read."""
    vocabulary = data.prepared.vocabulary
    if limit is None or vocabulary.max_length <= limit:
        return vocabulary
    if any(data.prepared.rows(split).lengths.max(initial=0) > limit for split in SPLITS):
        if vocabulary.has_values:
            raise UserError(f"{data.corpus_name}: documents have more features than the encoder reads: choose Bow")
        raise UserError(f"the encoder reads at most {limit:,} tokens: lower --data.max_length")
    return Vocabulary.from_text(vocabulary.text, limit)


def take_weights(module: nn.Module, weights: dict[str, Tensor]) -> None:
    """Start from another model's weights; what has another name or shape there starts anew, and is named."""
    mine = module.state_dict()
    fitting = {name: value for name, value in weights.items() if name in mine and alike(mine[name], value)}
    module.load_state_dict(fitting, strict=False)
    if anew := [name for name in mine if name not in fitting]:
        note(f"not in the checkpoint, or of another shape, so they start anew: {', '.join(anew)}")


def alike(one: Any, other: Any) -> bool:
    """Whether one can take the place of the other; extra states, which are no tensors, always can."""
    return not isinstance(one, Tensor) or one.shape == other.shape
