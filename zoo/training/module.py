"""The LightningModule of all experiments."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.cli import LRSchedulerCallable, OptimizerCallable
from torch import Tensor, nn
from torchmetrics import MeanMetric

from backbones import Features, Transformer
from datamodules import Batch, LabelSpace, TextDataModule
from datamodules.prepare.corpus import SPLITS
from datamodules.prepare.vocabulary import Vocabulary
from heads import Ranking
from heads.tail.rankings import truncate
from zoo.core.console import note
from zoo.core.errors import WIDEST, UserError, check_numbers, check_range, first_line
from zoo.core.lightning_internals import allow_clipping
from zoo.core.metrics import KS, PART_METRICS
from zoo.training.calibration import Calibration
from zoo.training.finite import non_finite, shortened
from zoo.training.known_vectors import KnownVectors, of_vectors, reads_vectors_only
from zoo.training.matching import load_matching
from zoo.training.optimizers import (
    average_sparse_gradients_after,
    check_dense_parameters,
    check_optimizer,
    clip_gradients,
    has_sparse_gradient,
    sparse_parameters,
)
from zoo.training.ranking_metrics import RankingMetrics
from zoo.training.ranking_model import BackboneWithHead, MakeBackbone, MakeHead
from zoo.training.stage import MAIN, Schedule, Stage
from zoo.training.stored import reading
from zoo.training.threshold_metrics import ThresholdMetrics

MANY_TERMS = 5  # with this many loss terms the progress bar shows only their sum
BAR_METRICS = {"nDCG@5", "P@1"}


class ZooModule(BackboneWithHead, pl.LightningModule):
    """Trains a backbone with a head, and measures the rankings of the head.

    Args:
        space: facts of the corpus; comes from the datamodule.
        backbone: encoder of documents.
        head: scores labels.
        optimizer: default of the stages; each stage makes a new one for its own parameters.
        lr_scheduler: goes with `optimizer`, stepped after each epoch; `WarmupDecay` after each step.
        depth: number of labels of a document that are ranked for metrics; F1 counts only these.
    """

    def __init__(
        self,
        space: LabelSpace,
        backbone: MakeBackbone,
        head: MakeHead,
        optimizer: OptimizerCallable = torch.optim.Adam,
        lr_scheduler: LRSchedulerCallable | None = None,
        depth: int = 100,
    ) -> None:
        check_range(max(KS), WIDEST, depth=depth)  # the metrics go up to the largest k
        super().__init__(space, backbone, head, depth)
        self.make_optimizer, self.make_scheduler = optimizer, lr_scheduler
        self.val_metrics, self.test_metrics = RankingMetrics(space), RankingMetrics(space)
        self.part_metrics: dict[str, RankingMetrics] = {}  # by name of the head's part, created on first use
        self.checks: dict[str, MeanMetric] = {}  # the head's own metrics, created on first use
        self.cut_metrics: ThresholdMetrics | None = None  # of a calibration, created on first use
        self.schedule: Schedule | None = None  # owns the current stage; set by `StageSchedule`
        self.all_finite = torch.tensor(True)  # all losses and scores so far; read at checkpoints, not in every step
        self.averaged: dict[nn.Parameter, Tensor] = {}  # saved in place of the parameters; set by `StageAveraging`
        self.known: KnownVectors | None = None  # document vectors in the cache
        self.start: dict[str, Any] | None = None  # checkpoint whose weights training starts from

    @property
    def stage(self) -> Stage:
        return MAIN if self.schedule is None else self.schedule.stage

    @property
    def threshold(self) -> float:
        """Score threshold with the best micro-F1 on the validation documents."""
        return float(self.test_metrics.tuned_threshold)

    @property
    def _ddp_params_and_buffers_to_ignore(self) -> list[str]:
        """Parameters that DDP must not reduce, read by its constructor: NCCL cannot send sparse gradients."""
        sparse = sparse_parameters(self)
        check_dense_parameters(self._trained_parameters(), sparse, self.stage.name)
        return list(sparse)

    def forward(self, batch: Batch) -> Features:
        if self.known is not None and not self.training and (vectors := self.known.find(batch)) is not None:
            return replace(of_vectors(vectors, batch), batch=replace(batch, vectors=vectors))
        return super().forward(batch)

    def _trained_parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self.named_parameters() if p.requires_grad}

    def setup(self, stage: str) -> None:
        if self.trainer.strategy.root_device.type == "mps":
            raise UserError("metrics need double precision, which MPS does not have: set `trainer.accelerator=cpu`")
        data = TextDataModule.of(self.trainer)
        if data is not None:
            self.vocabulary = vocabulary_within(data, self.backbone.max_length)
            self._check_same_corpus(data)
        if data is not None and isinstance(self.backbone, Transformer) and reads_vectors_only(self.head):
            self.known = KnownVectors(data, self.backbone, str(self.trainer.precision))
        if data is not None and stage == "fit":
            if (vectors := data.word_vectors()) is not None:
                self.backbone.load_vectors(vectors.matrix)
            self.backbone.learn_words(data.prepared.vocabulary)
            if self.backbone.reads_counts:
                self.backbone.learn_counts(data.train_words())
            if data.prepared.vocabulary.has_values and not self.backbone.reads_values:
                note(f"{type(self.backbone).__name__} ignores the feature values of documents; Bow reads them")
        if stage == "fit" and self.start is not None:
            with reading("`ckpt`"):
                self.on_load_checkpoint(self.start)
                load_matching(self, self.start["state_dict"])

    def _check_same_corpus(self, data: TextDataModule) -> None:
        corpus = data.prepared.folder.name, data.space.texts
        same = self.trainer.strategy.broadcast(corpus) == corpus
        # All ranks raise: a rank that went on would wait for the others forever.
        if not self.trainer.strategy.reduce_boolean_decision(same, all=True):
            raise UserError(f"processes have different corpora, this one {data.corpus_name}: prepare it once alone")

    def on_fit_start(self) -> None:
        if self.trainer.world_size > 1:  # DDP broadcasts the other parameters
            for parameter in sparse_parameters(self).values():
                torch.distributed.broadcast(parameter.detach(), src=0)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        stage, features = self.stage.name, self(batch)
        terms = self.head.loss(features, batch.targets, stage)
        if not terms["loss"].requires_grad:
            raise UserError(
                f"stage {stage!r}: the loss depends on no trained parameter; see `stages.{stage}.trainable`"
            )
        for name, value in terms.items():
            key = f"train/{stage}/{name}"
            in_bar = name == "loss" or len(terms) < MANY_TERMS
            self.log(key, value.detach(), on_step=True, on_epoch=True, prog_bar=in_bar, batch_size=len(batch))
        self.all_finite = self.all_finite.to(self.device) & terms["loss"].detach().isfinite()
        # DDP waits for a gradient of every trained parameter, also of a pooling that the head does not read.
        return terms["loss"] + 0 * features.pooled[0, 0] if self.trainer.world_size > 1 else terms["loss"]

    def check_finite(self, weights: dict[str, Any] | None = None) -> None:
        """Refuse weights, losses and scores that are not finite: before each validation, transition and checkpoint.

        Metrics would not show it, as ranks are finite in any case. All processes raise if one has to.

        Args:
            weights: state dict of this module, if there already is one.
        """
        named = self.named_parameters() if self.averaged else ()
        averages = {f"average of {name}": self.averaged[p] for name, p in named if p in self.averaged}
        names = non_finite((weights or self.state_dict()) | averages)
        found = [] if self.all_finite else ["a loss or score"]
        found += [f"weights ({shortened(names)})"] if names else []
        if self.trainer.strategy.reduce_boolean_decision(not found, all=True):
            return
        own = self.schedule is not None and not self.schedule.open_ended
        rate = f"stages.{self.stage.name}.lr" if own else "model.optimizer.lr"
        last = Path(self.trainer.default_root_dir, "checkpoints", "last.ckpt")
        # A resume restores the learning rate with the optimizer.
        resume = f", or resume from {last} with `ckpt_path=last` and `trainer.gradient_clip_val=1`"
        what = " and ".join(found) or "values of another process"
        raise UserError(
            f"stage {self.stage.name!r}, step {self.trainer.global_step:,}: not finite any more: {what}; "
            f"start again with a lower learning rate, `{rate}`{resume if last.is_file() else ''}"
        )

    def on_validation_start(self) -> None:
        self.check_finite()

    def on_test_start(self) -> None:
        self.check_finite()

    def validation_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        return {"ranking": self._measure(self.val_metrics, batch)}  # for callbacks

    def test_step(self, batch: Batch, batch_idx: int) -> dict[str, Any]:
        return {"ranking": self._measure(self.test_metrics, batch)}

    def _measure(self, metrics: RankingMetrics, batch: Batch) -> Ranking:
        features, counted = self(batch), batch.rows >= 0
        rankings = self._rankings(features, batch, counted)
        for name, ranking in rankings.items():
            if name and name not in self.part_metrics:
                self.part_metrics[name] = RankingMetrics(self.space).to(self.device)
            measured = self.part_metrics[name] if name else metrics
            measured.update(ranking.scores, ranking.labels, batch.targets, counted=counted)
            self.all_finite = self.all_finite.to(self.device) & ~ranking.scores.isnan().any()
        for name, values in self.head.checks(features, batch.targets).items():
            if name not in self.checks:
                self.checks[name] = MeanMetric(nan_strategy="ignore").to(self.device)
            self.checks[name].update(values[counted])
        return rankings[""]

    def _rankings(self, features: Features, batch: Batch, counted: Tensor) -> dict[str, Ranking]:
        """Rankings by name; measures the thresholds of a calibration."""
        if self.calibration is None:
            return self.head.rankings(features, min(self.depth, self.space.num_labels))
        rankings = self.head.rankings(features, self.calibration.depth(self.depth))
        own = self.calibration.ranked(rankings[""], self.calibration.depth(self.depth))
        if self.cut_metrics is None:
            self.cut_metrics = ThresholdMetrics(self.calibration, self.space.num_all).to(self.device)
        self.cut_metrics.update(own.scores, own.labels, batch.targets, counted)
        return rankings | {"": truncate(own, self.depth)}

    def _measure_parts(self, split: str) -> None:
        """Log the head's own metrics, those of its parts, and those of a calibration."""
        if self.cut_metrics is not None:
            for name, value in self.cut_metrics.compute().items():
                self.log(f"{split}/{name}", value.float())
            self.cut_metrics.reset()
        for name, mean in self.checks.items():
            self.log(f"{split}/{name}", mean.compute())
            mean.reset()
        for part, metrics in self.part_metrics.items():
            for name, value in metrics.compute().items():
                if name.partition("@")[0] in PART_METRICS and "/bin" not in name:
                    self.log(f"{split}/{part}/{name}", value.float())
            metrics.reset()

    def on_validation_epoch_end(self) -> None:
        self.check_finite()
        for name, value in self.val_metrics.compute().items():
            if "/bin" not in name:
                self.log(f"val/{name}", value.float(), prog_bar=name in BAR_METRICS)
        self.log("val/threshold", self.threshold)  # the one that F1@tuned of this validation used
        if not self.trainer.sanity_checking:
            threshold = self.val_metrics.best_threshold()
            self.val_metrics.tuned_threshold.fill_(threshold)
            self.test_metrics.tuned_threshold.fill_(threshold)
        self.val_metrics.reset()
        self._measure_parts("val")

    def on_test_epoch_end(self) -> None:
        self.check_finite()
        self.log_dict({f"test/{name}": value.float() for name, value in self.test_metrics.compute().items()})
        self.log("test/threshold", self.threshold)
        self.test_metrics.reset()
        self._measure_parts("test")

    def configure_optimizers(self) -> Any:
        parameters = self._trained_parameters()
        return self.optimizer_of(self.stage, parameters) if parameters else None  # a linear engine has none

    def optimizer_of(self, stage: Stage, parameters: dict[str, nn.Parameter]) -> dict[str, Any]:
        """Make the optimizer and the scheduler of a stage."""
        make_scheduler = stage.lr_scheduler or (None if stage.optimizer else self.make_scheduler)
        try:
            optimizer = (stage.optimizer or self.make_optimizer)(stage.parameter_groups(parameters))
            allow_clipping(optimizer)
            scheduler = make_scheduler(optimizer) if make_scheduler else None
        except (TypeError, ValueError, UserError) as error:
            reason = first_line(error).replace("`", "")  # settings of the optimizer, not of the model
            raise UserError(f"stage {stage.name!r}: cannot create the optimizer or scheduler: {reason}") from error
        option = f"stages.{stage.name}.optimizer" if stage.optimizer else "model.optimizer"
        for group in optimizer.param_groups:
            check_numbers(group, option)
        sparse = sparse_parameters(self)
        check_optimizer(optimizer, sparse, option)
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            check_dense_parameters(parameters, sparse, stage.name)
        if scheduler is None:
            return {"optimizer": optimizer}
        interval = "step" if getattr(scheduler, "every_step", False) else stage.lr_interval
        config = {"scheduler": scheduler, "interval": interval, "monitor": stage.monitor}
        return {"optimizer": optimizer, "lr_scheduler": config}

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        # `on_before_optimizer_step` is too late: by then the gradient scaler of each process has looked for infinities.
        if self.trainer.world_size > 1:
            optimizer_closure = average_sparse_gradients_after(optimizer_closure, self)
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        if any(has_sparse_gradient(p) for p in parameters):
            clip_gradients(parameters, gradient_clip_val or 0, gradient_clip_algorithm or "norm")
        else:
            super().configure_gradient_clipping(optimizer, gradient_clip_val, gradient_clip_algorithm)

    @torch.no_grad()
    def apply_average(self) -> None:
        """Replace the parameters by their averages, and end averaging."""
        for parameter, mean in self.averaged.items():
            parameter.copy_(mean)
        self.averaged.clear()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.check_finite(checkpoint["state_dict"])
        for name, parameter in self.named_parameters(remove_duplicate=False):
            if parameter in self.averaged:
                checkpoint["state_dict"][name] = self.averaged[parameter]
        checkpoint["zoo"] = self.stored_parts()

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "zoo" not in checkpoint:
            raise UserError("this checkpoint was not written by `zoo fit`")
        if names := non_finite(checkpoint["state_dict"]):
            raise UserError(f"weights of the checkpoint are not finite ({shortened(names)}): use an earlier one")
        stored = checkpoint["zoo"]
        if (added := stored["space"].get("added", 0)) and stored["space"]["names"] != self.space.names:
            raise UserError(
                f"{added:,} labels were added to this checkpoint after training, and its corpus does not have them: "
                "use it for prediction, or give the checkpoint from before they were added"
            )
        if self.trainer.state.fn == "fit" and checkpoint is not self.start and "optimizer_states" not in checkpoint:
            raise UserError("the checkpoint has only weights: start a stage from them with `from_stage` and `ckpt`")
        if stored["space"]["names"] != self.space.names:
            raise UserError("the checkpoint was trained on other labels: use the corpus that it was trained on")
        if self.vocabulary and stored["tokenizer"] != self.vocabulary.text:
            raise UserError("the checkpoint was trained with another vocabulary: use its own corpus and tokenizer")
        if self.trainer.state.fn != "fit":
            self.calibration, self.cut_metrics = Calibration.of(stored.get("calibration"), self.space), None


def vocabulary_within(data: TextDataModule, limit: int | None) -> Vocabulary:
    """Return the vocabulary of the corpus, which truncates new documents to the encoder's limit."""
    vocabulary = data.prepared.vocabulary
    if limit is None or vocabulary.max_length <= limit:
        return vocabulary
    if vocabulary.windows > 1 or any(data.prepared.rows(split).lengths.max(initial=0) > limit for split in SPLITS):
        if vocabulary.has_values:
            raise UserError(f"{data.corpus_name} has documents with more than {limit:,} features: choose Bow")
        raise UserError(f"the encoder reads at most {limit:,} tokens: lower `data.max_length`")
    return Vocabulary.from_text(vocabulary.text, limit)
