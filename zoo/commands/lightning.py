"""`zoo fit`, `zoo validate` and `zoo test`, based on LightningCLI."""

from __future__ import annotations

import logging
import pkgutil
import re
import signal
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

from jsonargparse import Namespace, set_parsing_settings
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint, ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

from callbacks import KeepPredictions, LastCheckpoint, RunReport, Stage, StageAveraging, StageProgressBar, StageSchedule
from callbacks.last_checkpoint import Stopped
from datamodules import LabelSpace, TextDataModule
from datamodules.prepare.known_labels import Known
from zoo.commands.catalog import import_parts
from zoo.commands.config_check import (
    broken_module,
    check_config,
    check_trainer,
    check_training,
    compare_settings,
)
from zoo.commands.experiment import OneLineParser, resolve_files
from zoo.commands.own_modules import split_trust
from zoo.commands.verbs import HINT, explain, one_line_errors
from zoo.core.console import is_first_process, note, terminal_output, warn
from zoo.core.cores import limit_threads
from zoo.core.errors import UserError, first_line
from zoo.core.lightning_internals import callbacks_of
from zoo.core.metrics import MONITOR, best_mode
from zoo.core.orphans import end_with_first_process
from zoo.core.run_folder import RunFolder
from zoo.core.settings import parse_yaml
from zoo.training.checkpoint import read_checkpoint
from zoo.training.checkpoint_io import AtomicCheckpointIO
from zoo.training.loggers import WandbSettings, close_run, make_loggers, run_folder
from zoo.training.module import ZooModule
from zoo.training.resume import check_restored, check_resumable
from zoo.training.stored import Stored, reading

TRAINER_DEFAULTS = {"use_distributed_sampler": False}  # the zoo's own sampler distributes rows over ranks
SILENCED = (
    "LightningCLI's args parameter",  # meant for scripts
    "callbacks used to create the checkpoint",  # testing does not need the callbacks of training
    "dataloader is not resumable",  # its sampler is
    r"isinstance\(treespec, LeafSpec\)",  # deprecated in torch, used by Lightning
    "configure_optimizers` returned `None`",  # linear models have no optimizer
    "sync_dist=True",  # metrics are reduced before they are logged
    "exists and is not empty",  # expected when a run is resumed
    "smaller than the logging interval",  # expected in short stages
)
UNLOGGED = ("Tip:", "Detected KeyboardInterrupt")
BEST = {"monitor": MONITOR, "mode": best_mode(MONITOR), "filename": "best", "enable_version_counter": False}
# Arguments of the trainer's methods that are no options.
NO_OPTIONS = {"model", "datamodule", "verbose", "weights_only"}
NO_OPTIONS |= {"dataloaders", "train_dataloaders", "val_dataloaders"}
BACKEND = re.compile(r"gloo|NCCL|Connection (closed|reset) by peer")  # in errors of communication
FIXABLE = (MisconfigurationException,)  # Lightning's errors that the user can fix


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def choose_tokenizer(config: Namespace) -> None:
    """Default to the backbone's own tokenizer; it is stored in the configuration, and so in checkpoints."""
    data, backbone = config.data.get("init_args"), config.model.backbone
    if not data or "tokenizer" not in data:  # a datamodule with another signature
        return
    own = None
    if isinstance(backbone, Namespace):  # not a factory function
        settings = vars(backbone.init_args) if "init_args" in backbone else {}
        own = pkgutil.resolve_name(backbone.class_path).own_tokenizer(**settings)
    if data.tokenizer is None:
        data.tokenizer = own or "word"
    elif own not in (None, data.tokenizer):
        warn(f"--data.tokenizer={data.tokenizer} is not the tokenizer of the encoder, {own}")


class ZooCLI(LightningCLI):
    """Adds the run folder, the loggers, self-contained checkpoints, and the final test."""

    model: ZooModule
    datamodule: TextDataModule

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        self.command_parser = parser
        parser.link_arguments("data", "model.space", compute_fn=self.label_space, apply_on="instantiate")
        parser.add_lightning_class_args(ModelCheckpoint, "best")
        parser.set_defaults({f"best.{name}": value for name, value in BEST.items()})
        parser.add_lightning_class_args(LastCheckpoint, "last")
        parser.add_class_arguments(WandbSettings, "wandb")
        parser.add_argument("--runs", type=str, default="runs", help="Folder of all runs.")
        parser.add_argument("--name", type=str, default="", help="Name of the run (default: name of the experiment).")
        parser.add_argument("--stages", type=list[Stage] | None, default=None, help="Stages of training, in order.")
        parser.add_argument(
            "--from_stage", type=str | None, default=None, help="Start at this stage, from the weights of --ckpt."
        )
        parser.add_argument("--ckpt", type=str | None, default=None, help="Checkpoint with the weights to start from.")
        parser.add_argument("--final_test", type=bool, default=True, help="Test the best checkpoint after training.")

    @property
    def settings(self) -> Namespace:
        """Settings of the command, as given."""
        given: Namespace = self.config[self.config.subcommand]
        return given

    @property
    def made(self) -> Namespace:
        """The same, with instances of classes."""
        made: Namespace = self.config_init[self.config.subcommand]
        return made

    def label_space(self, data: TextDataModule) -> LabelSpace:
        """Label space of the corpus; that of `ckpt` if labels were added to it, so that it can be trained further."""
        config = self.config[self.subcommand]
        if self.subcommand == "fit" and config.from_stage and config.ckpt:
            content = read_checkpoint(config.ckpt)
            with reading(config.ckpt):
                stored = Stored.of(content["zoo"])
            if stored.space.added:
                data.known = Known(stored.space, stored.vocabulary)
        return data.space

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        super().parse_arguments(parser, args)
        check_config(self.settings.as_dict())

    def before_instantiate_classes(self) -> None:
        config = self.settings
        files = config.config or []
        config.name = self.experiment = config.name or (Path(str(files[-1])).stem if files else "run")
        resume = self.subcommand == "fit" and config.ckpt_path == "last"
        if config.ckpt_path is not None and not resume and not Path(config.ckpt_path).is_file():
            raise UserError(f"no such checkpoint: {config.ckpt_path}")
        check_trainer(config.trainer)
        if self.subcommand == "fit":
            check_training(config)
        choose_tokenizer(config)

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except (ValueError, RuntimeError) as error:
            raise UserError(explain(error, FIXABLE) or f"invalid settings: {first_line(error)}{HINT}") from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Set up loggers and callbacks; runs on the built-in sample are marked in their folder, name and tables."""
        limit_threads()
        sample = self.datamodule.is_sample
        name = f"{self.experiment}-sample" if sample else self.experiment
        folder = None
        if self.subcommand == "fit":
            config = self.made
            resume = config.ckpt_path == "last"
            folder = run_folder(config.runs, self.experiment, sample, resume)
            if resume:
                config.ckpt_path = self.resume_from(folder)
            kwargs["default_root_dir"] = folder
            if config.stages:
                kwargs["max_epochs"] = sum(stage.epochs for stage in config.stages)
            kwargs["plugins"] = [AtomicCheckpointIO(), *as_list(self.made.trainer.plugins)]
            if self.settings.trainer.logger in (None, True):
                kwargs["logger"] = make_loggers(folder, name, self.made.wandb)
        else:
            kwargs |= {"logger": False, "enable_checkpointing": False}
            kwargs["plugins"] = [AtomicCheckpointIO(), *as_list(self.made.trainer.plugins)]
            self.command_parser.callback_keys.clear()
        self.facts = {
            "experiment": self.experiment,
            "data": self.datamodule.corpus_name,
            "sample": sample,
            "seed": self.settings.seed_everything,
            "backbone": type(self.model.backbone).__name__,
            "head": type(self.model.head).__name__,
            "train_documents": self.model.space.num_documents,
            "limit_train": self.datamodule.settings.limit_train,
            "labels": self.model.space.num_all,
        }
        corpus = "the built-in sample" if sample else self.datamodule.corpus_name
        report = RunReport(f"{self.experiment} on {corpus}", self.facts, folder)
        keep = [KeepPredictions(folder)] if folder else []
        self.trainer_defaults["callbacks"] = [*self.training_callbacks(), *keep, report]
        trainer = super().instantiate_trainer(**kwargs)
        check_restored(trainer)
        return trainer

    def training_callbacks(self) -> list[Callback]:
        """Callbacks of the stages. Their order matters.

        The average starts after the schedule has entered a stage, and the progress bar shows that stage. After a
        validation the schedule stores the best weights before the average is removed from the module.
        """
        if self.subcommand != "fit":
            return []
        config, trainer = self.made, self.made.trainer
        if config.from_stage:
            self.model.start = read_checkpoint(config.ckpt)
            with reading(config.ckpt):
                Stored.of(self.model.start["zoo"])
        own = any(isinstance(callback, ProgressBar) for callback in as_list(trainer.callbacks))
        bar = [] if own or trainer.enable_progress_bar is False else [StageProgressBar()]
        schedule = StageSchedule(config.stages, config.from_stage)
        return [schedule, StageAveraging(schedule), *bar]

    def resume_from(self, folder: Path) -> str | None:
        """Latest checkpoint of a run; rows that were logged after it are removed."""
        last, step = folder / "checkpoints" / "last.ckpt", -1
        if last.is_file():
            checkpoint = read_checkpoint(last)
            check_resumable(checkpoint, last)
            epochs = {stage.name: stage.epochs for stage in self.made.stages or []}
            # a final stage without epochs logs at the next step
            transformed = epochs.get(checkpoint["callbacks"]["StageSchedule"]["name"]) == 0
            step = checkpoint["global_step"] - (not transformed)
        else:
            note(f"{folder} has no checkpoint yet: the run starts from the beginning")
        if is_first_process():
            RunFolder(folder).drop_log_rows_after(step)
        return str(last) if last.is_file() else None

    def after_instantiate_classes(self) -> None:
        config = self.settings.clone()
        config.ckpt_path = None  # or a run with these settings would resume this one
        self.model.config_text = self.command_parser.dump(config, skip_none=False)

    def before_fit(self) -> None:
        if path := self.made.ckpt_path:
            compare_settings(read_checkpoint(path)["zoo"]["config"], self.model.config_text or "")
        if self.trainer.is_global_zero and self.model.config_text:
            RunFolder(Path(self.trainer.default_root_dir)).write_config(self.model.config_text)
            for logger in self.trainer.loggers:
                logger.log_hyperparams(self.facts | parse_yaml(self.model.config_text))

    def after_fit(self) -> None:
        if not self.settings.final_test:
            return
        if not callbacks_of(self.trainer, StageSchedule)[0].finished:
            note("the run stopped before its last stage ended, without a final test; resume with `--ckpt_path last`")
            return
        best = self.made.best.best_model_path or None
        has_test = len(self.datamodule.prepared.rows("test")) > 0
        evaluate = self.trainer.test if has_test else self.trainer.validate
        evaluate(self.model, datamodule=self.datamodule, ckpt_path=best, verbose=False, weights_only=True)
        note(f"run folder: {self.trainer.default_root_dir}")

    def validate(self, **kwargs: Any) -> None:
        self.trainer.validate(verbose=False, weights_only=True, **kwargs)

    def test(self, **kwargs: Any) -> None:
        self.trainer.test(verbose=False, weights_only=True, **kwargs)


def cli_of(command: str) -> type[ZooCLI]:
    """The command line with a parser for this command alone: building those of the others takes as long again."""

    class CommandCLI(ZooCLI):
        @staticmethod
        def subcommands() -> dict[str, set[str]]:
            return {command: NO_OPTIONS}

    return CommandCLI


def run(argv: list[str]) -> None:
    trust, argv = split_trust(argv)
    end_with_first_process()
    set_parsing_settings(instantiate_subclass_spec_in_any=False)  # a class belongs where a setting has its type
    import_parts()
    for message in SILENCED:
        warnings.filterwarnings("ignore", message=f".*{message}.*")
    lightning_log = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    lightning_log.addFilter(lambda record: not any(text in record.getMessage() for text in UNLOGGED))
    with tempfile.TemporaryDirectory() as folder:
        argv = resolve_files(argv, Path(folder), trust)
        try:
            cli_of(argv[0])(
                ZooModule,
                TextDataModule,
                subclass_mode_data=True,
                parser_class=OneLineParser,
                trainer_defaults=dict(TRAINER_DEFAULTS),
                seed_everything_default=0,
                auto_configure_optimizers=False,
                save_config_callback=None,
                load_from_checkpoint_support=False,
                parser_kwargs={"prog": "zoo", "description": "Train and evaluate models."},
                args=argv,
            )
        except Exception as error:
            if reason := broken_module(error) or lost_process(error):
                raise UserError(reason) from error
            raise
        finally:
            close_run()


def lost_process(error: Exception) -> str | None:
    """One line about another process of a distributed run that has ended; None for other errors."""
    if isinstance(error, RuntimeError) and BACKEND.search(str(error)):
        return f"another process of this run has ended: resume with `--ckpt_path last` ({first_line(error)})"
    return None


@terminal_output()
def main(args: list[str] | None = None) -> None:
    """Run a command of Lightning; errors that the user can fix end in one line and exit code 2."""
    with one_line_errors(also=FIXABLE):
        try:
            run(list(sys.argv[1:] if args is None else args))
        except Stopped as stop:
            name = "Ctrl-C" if stop.number == signal.SIGINT else "SIGTERM"
            if is_first_process():
                sys.stderr.write(f"stopped by {name}; resume with `--ckpt_path last`\n")
            raise SystemExit(128 + stop.number) from None
        except SystemExit as end:  # Lightning ends on Ctrl-C with exit code 1
            if not isinstance(end.__context__, KeyboardInterrupt):
                raise
            raise KeyboardInterrupt from None
