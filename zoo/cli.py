"""`python -m zoo`: LightningCLI for training and testing, typed functions for the rest."""

from __future__ import annotations

import errno
import logging
import sys
import tempfile
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import auto_cli
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint
from pytorch_lightning.cli import ArgsType, LightningArgumentParser, LightningCLI

from callbacks import RunReport
from datamodules import TextDataModule
from datamodules.errors import UserError
from zoo.catalog import list_parts, load_plugins
from zoo.checkpoint import read_checkpoint
from zoo.module import ZooModule
from zoo.parser import OneLineParser, check_top_level, fail
from zoo.predict import predict
from zoo.runs import WandbSettings, close_run, make_loggers, run_folder

VERBS: dict[str, Callable[..., None]] = {"predict": predict, "list": list_parts}
TRAINER_DEFAULTS = {"use_distributed_sampler": False}  # the zoo's own sampler shares rows among ranks
# Two files: Lightning's own `save_last` writes only when there is a new best.
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "best": {"monitor": "val/nDCG@5", "mode": "max", "filename": "best", "enable_version_counter": False},
    "last": {"filename": "last", "enable_version_counter": False},
}


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

    def parse_arguments(self, parser: LightningArgumentParser, args: ArgsType) -> None:
        argv = args if isinstance(args, list) else []
        if argv and argv[0] in self._subcommand_parsers:
            known = {action.dest.split(".")[0] for action in self._subcommand_parsers[argv[0]]._actions}
            for config in option_values(argv, "--config", "-c"):
                check_top_level(config, known)
        super().parse_arguments(parser, args)

    @property
    def experiment(self) -> str:
        files = self._get(self.config, "config") or []
        return self._get(self.config, "name") or (Path(str(files[-1])).stem if files else "run")

    def before_instantiate_classes(self) -> None:
        path = self._get(self.config, "ckpt_path")
        if path not in (None, "best", "last") and not Path(path).is_file():
            raise UserError(f"no such checkpoint: {path}")

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

    def validate(self, **kwargs: Any) -> None:
        self.trainer.validate(verbose=False, weights_only=True, **kwargs)

    def test(self, **kwargs: Any) -> None:
        self.trainer.test(verbose=False, weights_only=True, **kwargs)


def option_values(argv: list[str], *options: str) -> list[str]:
    """Values of `--option value` and `--option=value`."""
    values = [value for option, value in pairwise(argv) if option in options]
    return values + [a.split("=", 1)[1] for a in argv if "=" in a and a.split("=", 1)[0] in options]


def from_checkpoint(argv: list[str], folder: str) -> list[str]:
    """`test --ckpt F`: the configuration is the checkpoint's own."""
    (ckpt,) = option_values(argv, "--ckpt")[:1] or [""]
    if not ckpt:
        return argv
    config = yaml.safe_load(read_checkpoint(ckpt)["zoo"]["config"] or "{}")
    file = Path(folder) / f"{Path(ckpt).stem}.yaml"
    file.write_text(yaml.safe_dump({key: config[key] for key in ("seed_everything", "model", "data") if key in config}))
    rest, skip = [], False
    for argument in argv[1:]:
        if not skip and argument != "--ckpt" and not argument.startswith("--ckpt="):
            rest.append(argument)
        skip = argument == "--ckpt"
    return [argv[0], "--config", str(file), "--ckpt_path", ckpt, *rest]


def run(argv: list[str]) -> None:
    load_plugins()
    if argv and argv[0] in VERBS:
        auto_cli(VERBS[argv[0]], args=argv[1:], as_positional=False, parser_class=OneLineParser)
        return
    warnings.filterwarnings("ignore", message=".*LightningCLI's args parameter.*")
    advertising = logging.getLogger("pytorch_lightning.utilities.rank_zero")
    advertising.addFilter(lambda record: "Tip:" not in record.getMessage())
    with tempfile.TemporaryDirectory() as folder:
        if argv[:1] in (["validate"], ["test"]):
            argv = from_checkpoint(argv, folder)
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
                args=argv,
            )
        finally:
            close_run()


def main(args: list[str] | None = None) -> None:
    """What a person can put right ends in one line and exit code 2."""
    try:
        run(list(sys.argv[1:] if args is None else args))
    except Exception as error:
        if (message := explain(error)) is None:
            raise
        fail(message)


def explain(error: BaseException | None) -> str | None:
    """The line for a person, if this error or one behind it (jsonargparse wraps them) is a person's to mend."""
    while error is not None:
        if isinstance(error, UserError):
            return " ".join(str(error).split())
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return (
                f"the disk is full ({error.filename or 'no file named'}): free some space; older checkpoints are whole"
            )
        error = error.__cause__ or error.__context__
    return None
