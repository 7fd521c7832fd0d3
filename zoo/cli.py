"""`python -m zoo`: LightningCLI for training and testing, typed functions for the rest."""

from __future__ import annotations

import errno
import logging
import os
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import auto_cli
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI

from callbacks import RunReport
from datamodules import TextDataModule
from datamodules.base import note
from datamodules.errors import UserError, first_line
from zoo.catalog import first_sentence, list_parts, load_plugins
from zoo.checkpoint import read_checkpoint
from zoo.module import ZooModule
from zoo.parser import OneLineParser, fail, resolve_config
from zoo.predict import predict
from zoo.runs import WandbSettings, close_run, make_loggers, run_folder

VERBS: dict[str, Callable[..., None]] = {"predict": predict, "list": list_parts}
TRAINER_DEFAULTS = {"use_distributed_sampler": False}  # the zoo's own sampler shares rows among ranks
SILENCED = (
    "LightningCLI's args parameter",  # meant for scripts
    "dataloader is not resumable",  # its sampler is
    r"isinstance\(treespec, LeafSpec\)",  # between Lightning and torch
    "sync_dist=True",  # metrics are reduced before they are logged
)
DESCRIPTION = "Train and test; further commands: predict (label documents), list (what there is to choose from)."
# Two files: Lightning's own `save_last` writes only when there is a new best.
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "best": {"monitor": "val/nDCG@5", "mode": "max", "filename": "best", "enable_version_counter": False},
    # `mode` has no effect without a monitor, but tells its state from that of a plain ModelCheckpoint of the user's
    "last": {"filename": "last", "mode": "max", "save_on_train_epoch_end": True, "enable_version_counter": False},
}
HINT = " (ZOO_TRACEBACK=1 shows where it came from)"


class ZooCLI(LightningCLI):
    """Adds the run folder, the loggers, checkpoints that rebuild themselves, and the final table."""

    model: ZooModule
    datamodule: TextDataModule

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        loaders = {"dataloaders", "train_dataloaders", "val_dataloaders"}
        return dict.fromkeys(("fit", "validate", "test"), loaders | {"model", "datamodule", "verbose", "weights_only"})

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.link_arguments("data.space", "model.space", apply_on="instantiate")
        for file, defaults in CHECKPOINTS.items():
            parser.add_lightning_class_args(ModelCheckpoint, file)
            parser.set_defaults({f"{file}.{name}": value for name, value in defaults.items()})
        parser.add_class_arguments(WandbSettings, "wandb")
        parser.add_argument("--runs", type=str, default="runs", help="Folder for run folders.")
        parser.add_argument("--name", type=str, default="", help="Name of the experiment; by default its file's.")
        parser.add_argument("--final_test", type=bool, default=True, help="After fit, test the best checkpoint.")

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        files = config.config or []
        config.name = self.experiment = config.name or (Path(str(files[-1])).stem if files else "run")
        if Path(config.name).name != config.name:
            raise UserError(f"--name={config.name} is not a name: it becomes a folder of --runs")
        if config.ckpt_path is not None and not Path(config.ckpt_path).is_file():
            raise UserError(f"no such checkpoint: {config.ckpt_path}")
        if config.trainer.overfit_batches:
            raise UserError("--trainer.overfit_batches replaces the zoo's sampler: use --data.limit_train instead")

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except (ValueError, RuntimeError) as error:
            raise UserError(explain(error) or f"the settings do not fit: {first_line(error)}{HINT}") from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The corpus is known by now: a run on the sample says so in its folder, its name and its tables."""
        sample = self.datamodule.is_sample
        name = f"{self.experiment}-sample" if sample else self.experiment
        folder = None
        if self.subcommand == "fit":
            folder = run_folder(self._get(self.config, "runs"), self.experiment, sample)
            kwargs["default_root_dir"] = folder
            if self._get(self.config, "trainer").logger in (None, True):
                kwargs["logger"] = make_loggers(folder, name, self._get(self.config_init, "wandb"))
        else:
            kwargs |= {"logger": False, "enable_checkpointing": False}
            self._parser(self.subcommand).callback_keys.clear()
        self.facts = {
            "experiment": self.experiment,
            "data": self.datamodule.corpus_name,
            "sample": sample,
            "seed": self._get(self.config, "seed_everything"),
        }
        corpus = "the built-in sample" if sample else self.datamodule.corpus_name
        self.trainer_defaults["callbacks"] = [RunReport(f"{self.experiment} on {corpus}", self.facts, folder)]
        return super().instantiate_trainer(**kwargs)

    def after_instantiate_classes(self) -> None:
        config = self.config[self.subcommand] if self.subcommand else self.config
        self.model.config_text = self._parser(self.subcommand).dump(config, skip_none=False)

    def before_fit(self) -> None:
        if self.trainer.is_global_zero and self.model.config_text:
            folder = Path(self.trainer.default_root_dir)
            (folder / "config.yaml").write_text(self.model.config_text, "utf8")
            for logger in self.trainer.loggers:
                logger.log_hyperparams(self.facts | yaml.safe_load(self.model.config_text))

    def after_fit(self) -> None:
        if not self._get(self.config, "final_test"):
            return
        best = self._get(self.config_init, "best").best_model_path or None
        has_test = len(self.datamodule.prepared.rows("test")) > 0
        evaluate = self.trainer.test if has_test else self.trainer.validate
        evaluate(self.model, datamodule=self.datamodule, ckpt_path=best, verbose=False, weights_only=True)
        note(f"run folder: {self.trainer.default_root_dir}")

    def validate(self, **kwargs: Any) -> None:
        self.trainer.validate(verbose=False, weights_only=True, **kwargs)

    def test(self, **kwargs: Any) -> None:
        self.trainer.test(verbose=False, weights_only=True, **kwargs)


def resolve_files(argv: list[str], folder: Path) -> list[str]:
    """Arguments with every `--config` resolved, and `--ckpt F` turned into the configuration that F carries."""
    resolved, options = [], iter(argv)
    for argument in options:
        option, given, value = argument.partition("=")
        if option not in ("--config", "-c", "--ckpt"):
            resolved.append(argument)
            continue
        value = value if given else next(options, "")
        place = folder / str(len(resolved))  # files of one name may come from two folders
        place.mkdir()
        if option == "--ckpt":
            resolved += ["--config", str(config_of(value, place)), "--ckpt_path", value]
        else:
            resolved += ["--config", str(resolve_config(value, place))]
    return resolved


def config_of(checkpoint: str, folder: Path) -> Path:
    """What a checkpoint was trained with, as far as a test needs it."""
    config = yaml.safe_load(read_checkpoint(checkpoint)["zoo"]["config"] or "{}")
    kept = ("seed_everything", "name", "model", "data")
    file = folder / f"{Path(checkpoint).stem}.yaml"
    file.write_text(yaml.safe_dump({key: config[key] for key in kept if key in config}), "utf8")
    return file


def run(argv: list[str]) -> None:
    load_plugins()
    if argv and argv[0] in VERBS:
        verb, prog = VERBS[argv[0]], f"python -m zoo {argv[0]}"
        about = first_sentence(verb.__doc__)
        auto_cli(verb, args=argv[1:], as_positional=False, parser_class=OneLineParser, prog=prog, description=about)
        return
    for message in SILENCED:
        warnings.filterwarnings("ignore", message=f".*{message}.*")
    advertising = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    advertising.addFilter(lambda record: "Tip:" not in record.getMessage())
    with tempfile.TemporaryDirectory() as folder:
        argv = resolve_files(argv, Path(folder))
        try:
            ZooCLI(
                ZooModule,
                TextDataModule,
                subclass_mode_data=True,
                parser_class=OneLineParser,
                trainer_defaults=dict(TRAINER_DEFAULTS),
                seed_everything_default=0,
                auto_configure_optimizers=False,
                save_config_callback=None,
                load_from_checkpoint_support=False,
                parser_kwargs={"prog": "python -m zoo", "description": DESCRIPTION},
                args=argv,
            )
        finally:
            close_run()


def main(args: list[str] | None = None) -> None:
    """What a person can put right ends in one line and exit code 2."""
    try:
        run(list(sys.argv[1:] if args is None else args))
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        raise SystemExit(130) from None
    except BrokenPipeError:  # whoever reads our output has gone: nothing is left to say
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(1) from None
    except Exception as error:
        if "ZOO_TRACEBACK" in os.environ or (message := explain(error)) is None:
            raise
        fail(message)


def explain(error: BaseException | None) -> str | None:
    """The line for a person, if this error or one behind it (jsonargparse wraps them) is a person's to mend."""
    while error is not None:
        if isinstance(error, UserError | MisconfigurationException):
            return " ".join(str(error).split())
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return f"the disk is full ({error.filename or 'no file named'}): free some space and run again"
        error = error.__cause__ or error.__context__
    return None
