"""Private Lightning attributes: they exist, behave as expected, and are used in one module only."""

import ast
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import EarlyStopping, RichProgressBar
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.plugins.precision import MixedPrecision
from pytorch_lightning.strategies import DDPStrategy
from torch.utils.data import DataLoader

from zoo.core import lightning_internals as internals

ROOT = Path(__file__).parents[3]
HOME = ROOT / "zoo" / "core" / "lightning_internals.py"
PACKAGES = ("backbones", "callbacks", "datamodules", "heads", "zoo")
# Private attributes of other libraries, and of the zoo's own classes; none of them is Lightning's.
ALLOWED = {
    "_exit": "os: ends a process without cleaning up, when its parent is gone",
    "_apply": "torch: super() of a metric that keeps its precision",
    "_baseline_prediction": "scikit-learn: where boosting starts",
    "_attn_implementation": "transformers: attention kernel of a configuration",
    "_fingerprint": "datasets: cache key",
    "_documents": "own: of the base class of linear engines",
    "_fit": "own: a linear engine fits the engine of a fold",
    "_indices": "torch: rows of an uncoalesced gradient",
    "_is_synced": "torchmetrics: whether the states are those of all processes",
    "_modules": "torch: submodules by name",
    "_trees": "own: of the base class of tree heads",
    "_load_from_state_dict": "torch: super() of heads that check a state",
    "_model_ptr": "omikuji: handle for its native calls",
    "_predictors": "scikit-learn: the trees of boosting",
    "_replace": "namedtuple",
    "_share": "own: a linear engine ranks the documents of a fold",
    "_sync_flags": "own: a load hook of the re-ranker updates it",
    "_thread_pool": "omikuji: handle for its native calls",
    "_version": "torch: counts the changes of a tensor in place",
    "_values": "torch: rows of an uncoalesced gradient",
    "_write_json": "own: converters by format",
    "_write_lines": "own: converters by format",
    "_write_parquet": "own: converters by format",
}


class Tiny(pl.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch, batch_idx):
        return self.layer(batch).sum()

    def validation_step(self, batch, batch_idx):
        pass

    def train_dataloader(self):
        return DataLoader(torch.ones(4, 1))

    val_dataloader = train_dataloader

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Asking(pl.Callback):
    """Queries the internals after each batch and each epoch."""

    def __init__(self):
        self.batches, self.epochs = [], []

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        asked = (internals.is_accumulating, internals.validates_after_this_batch, internals.logging_step)
        self.batches.append(tuple(ask(trainer) for ask in asked))
        internals.log_train_step(trainer)

    def on_train_epoch_end(self, trainer, pl_module):
        self.epochs.append((internals.epochs_done(trainer), trainer.current_epoch))


def trainer_with(*callbacks, **settings):
    quiet = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False, "accelerator": "cpu"}
    bar = {} if any(isinstance(c, RichProgressBar) for c in callbacks) else {"enable_progress_bar": False}
    return pl.Trainer(callbacks=list(callbacks), **quiet | bar | settings)


def fused_optimizer():
    parameter = torch.nn.Parameter(torch.ones(2))
    parameter.grad = torch.full_like(parameter, 3.0)
    return torch.optim.AdamW([parameter], fused=True)


@pytest.mark.parametrize(
    ("function", "owner", "attribute"),
    [
        ("callbacks_of", lambda: trainer_with(), "callbacks"),
        ("is_fast_dev_run", lambda: trainer_with(), "fast_dev_run"),
        ("epochs_done", lambda: trainer_with().fit_loop.epoch_progress.current, "processed"),
        ("batches_to_skip", lambda: trainer_with().fit_loop.epoch_loop.batch_progress.current, "ready"),
        ("batches_to_skip", lambda: trainer_with().fit_loop, "restarting"),
        ("is_accumulating", lambda: trainer_with().fit_loop, "_should_accumulate"),
        ("validates_after_this_batch", lambda: trainer_with().fit_loop.epoch_loop, "_should_check_val_fx"),
        ("validates_after_this_batch", lambda: trainer_with().fit_loop, "_data_fetcher"),
        ("log_train_step", lambda: trainer_with(), "_logger_connector"),
        ("log_train_step", lambda: trainer_with()._logger_connector, "update_train_step_metrics"),
        ("logging_step", lambda: trainer_with().fit_loop.epoch_loop, "_batches_that_stepped"),
        ("reload_train_dataloader", lambda: trainer_with().fit_loop, "_combined_loader"),
        ("allow_clipping", lambda: fused_optimizer(), "_step_supports_amp_scaling"),
        ("loaded_states", lambda: trainer_with(), "_checkpoint_connector"),
        ("loaded_states", lambda: trainer_with()._checkpoint_connector, "_loaded_checkpoint"),
        ("around_restore", lambda: trainer_with()._checkpoint_connector, "_restore_modules_and_callbacks"),
        ("around_restore", lambda: trainer_with()._checkpoint_connector, "restore_training_state"),
        ("set_ddp_default", DDPStrategy, "_ddp_kwargs"),
        ("skip_ddp", DDPStrategy, "configure_ddp"),
        ("DescribedProgressBar", RichProgressBar, "_get_train_description"),
        ("is_progress_stopped", RichProgressBar, "_progress_stopped"),
        ("drop_anonymous", lambda: WandbLogger(offline=True), "_wandb_init"),
    ],
)
def test_lightning_has_the_attributes_in_use(function, owner, attribute):
    made = owner()
    message = f"Lightning {pl.__version__}: {type(made).__name__} has no {attribute}, which {function} in {HOME} uses"
    assert hasattr(made, attribute), message


def test_training_loop_state_is_read_correctly():
    asking = Asking()
    trainer = trainer_with(asking, max_epochs=2, accumulate_grad_batches=2, val_check_interval=0.5)
    trainer.fit(Tiny())
    assert asking.batches[:4] == [(True, False, 0), (False, True, 0), (True, False, 1), (False, True, 1)]
    assert asking.epochs == [(1, 0), (2, 1)]
    assert internals.datamodule_of(trainer) is None
    assert internals.callbacks_of(trainer, Asking) == [asking]
    assert internals.callbacks_of(trainer, EarlyStopping) == []
    assert not internals.is_fast_dev_run(trainer)
    assert internals.is_fast_dev_run(trainer_with(fast_dev_run=True))


def test_reloaded_train_dataloader_starts_from_its_beginning():
    class Counting(Tiny):
        made = 0

        def train_dataloader(self):
            self.made += 1
            return super().train_dataloader()

    class Reloading(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            internals.reload_train_dataloader(trainer)

    module, asking = Counting(), Asking()
    trainer_with(Reloading(), asking, max_epochs=2).fit(module)
    assert module.made >= 3
    assert len(asking.batches) == 8


def test_gradients_of_fused_optimizers_can_be_clipped():
    optimizer, precision = fused_optimizer(), MixedPrecision("bf16-mixed", "cpu")
    with pytest.raises(RuntimeError, match="unscaling"):
        precision.clip_gradients(optimizer, 1.0)
    internals.allow_clipping(optimizer)
    precision.clip_gradients(optimizer, 1.0)
    assert optimizer.param_groups[0]["params"][0].grad.norm() <= 1


def test_the_global_seed_is_that_of_seed_everything(monkeypatch):
    monkeypatch.delenv("PL_GLOBAL_SEED", raising=False)
    assert internals.global_seed() == 0
    for name in ("PL_GLOBAL_SEED", "PL_SEED_WORKERS"):  # restored after this test
        monkeypatch.setenv(name, "0")
    pl.seed_everything(7, verbose=False)
    assert internals.global_seed() == 7


def test_ddp_settings():
    strategy = DDPStrategy(broadcast_buffers=True)
    internals.set_ddp_default(strategy, "broadcast_buffers", False)
    internals.set_ddp_default(strategy, "static_graph", False)
    assert strategy._ddp_kwargs == {"broadcast_buffers": True, "static_graph": False}
    internals.skip_ddp(strategy)
    assert strategy.configure_ddp() is None


def test_progress_bar_description_can_be_overridden():
    described = []

    class Bar(internals.DescribedProgressBar):
        def describe_epoch(self, current_epoch):
            described.append(super().describe_epoch(current_epoch))
            return "described"

    bar = Bar()
    assert not internals.is_progress_stopped(bar)
    trainer_with(bar, max_epochs=1).fit(Tiny())
    assert "Epoch 0/0" in described[0]
    assert internals.is_progress_stopped(bar)


def test_anonymous_is_dropped_from_wandb_settings():
    logger = WandbLogger(offline=True, anonymous=True)
    assert "anonymous" in logger._wandb_init
    internals.drop_anonymous(logger)
    assert "anonymous" not in logger._wandb_init


def private_attributes(source):
    """Names of private attributes that are not defined in this source, on `self` and anything else."""
    nodes = list(ast.walk(ast.parse(source)))
    own = {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    found = [node for node in nodes if isinstance(node, ast.Attribute)]
    mine = {node for node in found if isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")}
    own |= {node.attr for node in mine if isinstance(node.ctx, ast.Store)}
    for node in found:
        if node.attr.startswith("_") and not node.attr.startswith("__") and not (node in mine and node.attr in own):
            yield node.attr


@pytest.mark.parametrize(
    "path",
    [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py")) if path != HOME],
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_private_attributes_of_lightning_stay_in_one_module(path):
    found = set(private_attributes(path.read_text("utf8"))) - ALLOWED.keys()
    assert not found, f"Lightning's belong in {HOME.name}, with their reason; others in ALLOWED, with theirs"


def test_private_attributes_are_found():
    source = "trainer._a.b\nself._c\nself.x._d = 1\nsuper()._e()\nf.__doc__\nself._f = self._f\ndef _g(self): self._g()"
    assert set(private_attributes(source)) == {"_a", "_c", "_d", "_e"}
    assert "_should_accumulate" in set(private_attributes(HOME.read_text("utf8")))
