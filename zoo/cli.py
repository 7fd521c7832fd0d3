"""`python -m zoo`: LightningCLI for training and testing, typed functions for the rest."""

from __future__ import annotations

import logging
import pkgutil
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import Namespace
from lightning_fabric.utilities.exceptions import MisconfigurationException
from pytorch_lightning import Callback, Trainer
from pytorch_lightning.callbacks import ModelCheckpoint, ProgressBar
from pytorch_lightning.cli import LightningArgumentParser, LightningCLI
from pytorch_lightning.utilities.exceptions import SIGTERMException

from callbacks import KeepPredictions, LastCheckpoint, RunReport, Stage, StageAveraging, StageProgressBar, StageSchedule
from datamodules import TextDataModule
from datamodules.errors import UserError, first_line
from datamodules.progress import is_first_process, note
from zoo.catalog import list_parts, load_plugins
from zoo.checkpoint import WholeCheckpoints, read_checkpoint
from zoo.data import run_data
from zoo.labels import add_labels
from zoo.module import ZooModule
from zoo.parser import OneLineParser, resolve_files
from zoo.predict import predict
from zoo.rerank import rerank
from zoo.runs import WandbSettings, close_run, drop_rows_after, make_loggers, run_folder
from zoo.tree import show_tree
from zoo.verbs import explain, one_line_errors, run_verb

VERBS: dict[str, Callable[..., None]] = {
    "predict": predict,
    "add-labels": add_labels,
    "rerank": rerank,
    "tree": show_tree,
    "list": list_parts,
}
TRAINER_DEFAULTS = {"use_distributed_sampler": False}  # the zoo's own sampler shares rows among ranks
SILENCED = (
    "LightningCLI's args parameter",  # meant for scripts
    "callbacks used to create the checkpoint",  # those of training, which a test does not need
    "dataloader is not resumable",  # its sampler is
    r"isinstance\(treespec, LeafSpec\)",  # between Lightning and torch
    "configure_optimizers` returned `None`",  # a linear engine has nothing for one
    "sync_dist=True",  # metrics are reduced before they are logged
    "exists and is not empty",  # so it is in a run that goes on
    "smaller than the logging interval",  # true of every small stage
)
DESCRIPTION = (
    "Train and test; further commands: predict (label documents), compare (runs in one table), report (a page with "
    "pictures of runs), sweep (many settings of one experiment), add-labels (new labels without retraining), "
    "rerank (rare labels forward, without retraining), tree (which labels a label tree has put together), "
    "data (name, prepare, count, convert and check corpora), list (what there is to choose from)."
)
BEST = {"monitor": "val/nDCG@5", "mode": "max", "filename": "best", "enable_version_counter": False}
SHARDED = ("fsdp", "deepspeed", "xla", "single_xla")  # strategies that the stages cannot serve
MENDABLE = (MisconfigurationException,)  # beside our own: Lightning says by it what a person can put right
HINT = " (ZOO_TRACEBACK=1 shows where it came from)"


def as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [] if value is None else [value]


def check_training(config: Namespace) -> None:
    trainer = config.trainer
    if trainer.overfit_batches:
        raise UserError("--trainer.overfit_batches replaces the zoo's sampler: use --data.limit_train instead")
    if bool(config.from_stage) != bool(config.ckpt):
        raise UserError("--from_stage NAME and --ckpt F go together; to continue a run, give --ckpt_path last")
    if config.from_stage and config.ckpt_path not in (None, "last"):
        raise UserError("--ckpt_path continues a run, --from_stage starts a new one: give one of them")
    names = [stage.name for stage in config.stages or []]
    if config.from_stage and config.from_stage not in names:
        raise UserError(f"there is no stage {config.from_stage!r}: the experiment has {', '.join(names) or 'none'}")
    if config.stages and trainer.max_epochs is not None:
        raise UserError("each stage has its own epochs: give --stages.NAME.epochs instead of --trainer.max_epochs")
    if config.stages and trainer.max_steps != -1:
        raise UserError("--trainer.max_steps would end within the stages: shorten --stages.NAME.epochs instead")
    if isinstance(trainer.strategy, str) and trainer.strategy.startswith(SHARDED):
        raise UserError(f"--trainer.strategy={trainer.strategy} cannot be used: stages need whole weights; take ddp")


def choose_tokenizer(config: Namespace) -> None:
    """Where the corpus names none, it takes the backbone's own; written down, so that a checkpoint has it too."""
    data, backbone = config.data.get("init_args"), config.model.backbone
    if not data or "tokenizer" not in data:  # a datamodule of another's
        return
    own = None
    if isinstance(backbone, Namespace):  # otherwise a function
        settings = vars(backbone.init_args) if "init_args" in backbone else {}
        own = pkgutil.resolve_name(backbone.class_path).own_tokenizer(**settings)
    if data.tokenizer is None:
        data.tokenizer = own or "word"
    elif own not in (None, data.tokenizer):
        note(f"the corpus has the tokenizer {data.tokenizer}, not the encoder's own, {own}")


def compare_settings(before: str, now: str) -> None:
    """A run goes on with the same model; of other settings that have changed a line tells."""
    old, new = (flattened({k: yaml.safe_load(t)[k] for k in ("model", "data", "stages")}) for t in (before, now))
    changed = [key for key in sorted(old.keys() | new.keys()) if old.get(key) != new.get(key)]
    if other := [key for key in changed if key.startswith(("model.backbone.", "model.head."))]:
        raise UserError(
            f"the run was begun with another model ({', '.join(other)}): give it another --name to start anew"
        )
    if changed:
        note(f"settings that differ from those the run was begun with: {', '.join(changed)}")


def flattened(value: Any, key: str = "") -> dict[str, Any]:
    """Nested settings by dotted keys."""
    if not isinstance(value, dict | list) or not value:
        return {key: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: v for name, part in items for k, v in flattened(part, f"{key}.{name}" if key else str(name)).items()}


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
        parser.add_lightning_class_args(ModelCheckpoint, "best")
        parser.set_defaults({f"best.{name}": value for name, value in BEST.items()})
        parser.add_lightning_class_args(LastCheckpoint, "last")
        parser.add_class_arguments(WandbSettings, "wandb")
        parser.add_argument("--runs", type=str, default="runs", help="Folder for run folders.")
        parser.add_argument("--name", type=str, default="", help="Name of the experiment; by default its file's.")
        parser.add_argument("--stages", type=list[Stage] | None, default=None, help="Stages of training, in order.")
        parser.add_argument("--from_stage", type=str | None, default=None, help="Begin here, with weights of --ckpt.")
        parser.add_argument("--ckpt", type=str | None, default=None, help="Checkpoint: whose weights to start from.")
        parser.add_argument("--final_test", type=bool, default=True, help="After fit, test the best checkpoint.")

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        files = config.config or []
        config.name = self.experiment = config.name or (Path(str(files[-1])).stem if files else "run")
        if Path(config.name).name != config.name:
            raise UserError(f"--name={config.name} is not a name: it becomes a folder of --runs")
        resume = self.subcommand == "fit" and config.ckpt_path == "last"
        if config.ckpt_path is not None and not resume and not Path(config.ckpt_path).is_file():
            raise UserError(f"no such checkpoint: {config.ckpt_path}")
        if self.subcommand == "fit":
            check_training(config)
        choose_tokenizer(config)

    def instantiate_classes(self) -> None:
        try:
            super().instantiate_classes()
        except (ValueError, RuntimeError) as error:
            raise UserError(
                explain(error, (MisconfigurationException,)) or f"the settings do not fit: {first_line(error)}{HINT}"
            ) from error

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """The corpus is known by now: a run on the sample says so in its folder, its name and its tables."""
        sample = self.datamodule.is_sample
        name = f"{self.experiment}-sample" if sample else self.experiment
        folder = None
        if self.subcommand == "fit":
            config = self.config_init["fit"]
            resume = config.ckpt_path == "last"
            folder = run_folder(config.runs, self.experiment, sample, resume)
            if resume:
                config.ckpt_path = self.continue_in(folder)
            kwargs["default_root_dir"] = folder
            if config.stages:
                kwargs["max_epochs"] = sum(stage.epochs for stage in config.stages)
            kwargs["plugins"] = [WholeCheckpoints(), *as_list(self._get(self.config_init, "trainer").plugins)]
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
        return super().instantiate_trainer(**kwargs)

    def training_callbacks(self) -> list[Callback]:
        """In this order: the average is of the stage that has begun, and the bar shows it.

        After a validation the schedule notes the best weights before the average is taken out of the module.
        """
        if self.subcommand != "fit":
            return []
        config, trainer = self.config_init["fit"], self._get(self.config_init, "trainer")
        if config.from_stage:
            self.model.start = read_checkpoint(config.ckpt)
        own = any(isinstance(callback, ProgressBar) for callback in as_list(trainer.callbacks))
        bar = [] if own or trainer.enable_progress_bar is False else [StageProgressBar()]
        schedule = StageSchedule(config.stages, config.from_stage)
        return [schedule, StageAveraging(schedule), *bar]

    def continue_in(self, folder: Path) -> str | None:
        """The newest checkpoint of a run; its log loses what came after."""
        last, step = folder / "checkpoints" / "last.ckpt", -1
        if last.is_file():
            checkpoint = read_checkpoint(last)
            epochs = {stage.name: stage.epochs for stage in self.config_init["fit"].stages or []}
            # a last stage without epochs has logged at the step that would have come next
            transformed = epochs.get(checkpoint["callbacks"]["StageSchedule"]["name"]) == 0
            step = checkpoint["global_step"] - (not transformed)
        else:
            note(f"{folder} has no checkpoint yet: the run begins anew there")
        if is_first_process():
            drop_rows_after(folder, step)
        return str(last) if last.is_file() else None

    def after_instantiate_classes(self) -> None:
        config = self.config[self.subcommand].clone()
        config.ckpt_path = None  # so that the same settings make a run of their own
        self.model.config_text = self._parser(self.subcommand).dump(config, skip_none=False)

    def before_fit(self) -> None:
        if path := self.config_init["fit"].ckpt_path:
            compare_settings(read_checkpoint(path)["zoo"]["config"], self.model.config_text or "")
        if self.trainer.is_global_zero and self.model.config_text:
            folder = Path(self.trainer.default_root_dir)
            (folder / "config.yaml").write_text(self.model.config_text, "utf8")
            for logger in self.trainer.loggers:
                logger.log_hyperparams(self.facts | yaml.safe_load(self.model.config_text))

    def after_fit(self) -> None:
        if not self._get(self.config, "final_test"):
            return
        if not next(c for c in self.trainer.callbacks if isinstance(c, StageSchedule)).finished:  # type: ignore[attr-defined]
            note("the run stopped before the end of its stages: no final test; `--ckpt_path last` goes on")
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


def run(argv: list[str]) -> None:
    load_plugins()
    if argv and argv[0] in VERBS:
        run_verb(VERBS[argv[0]], argv[0], argv[1:])
        return
    if argv and argv[0] == "data":  # it has commands of its own
        run_data(argv[1:])
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
    with one_line_errors(also=MENDABLE):
        try:
            run(list(sys.argv[1:] if args is None else args))
        except SIGTERMException:
            sys.stderr.write("stopped by SIGTERM; `--ckpt_path last` goes on from here\n")
            raise SystemExit(128 + signal.SIGTERM) from None
