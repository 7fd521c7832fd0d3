"""Training time, summed over all parts of a resumed run."""

import pytest
from pytorch_lightning import Trainer
from pytorch_lightning.demos.boring_classes import BoringModel

from callbacks import RunReport

QUIET = {"accelerator": "cpu", "logger": False, "enable_progress_bar": False, "enable_model_summary": False}
LIMITS = {"limit_train_batches": 2, "limit_val_batches": 0, "limit_test_batches": 1, "num_sanity_val_steps": 0}


class Clock:
    """A clock that tests advance."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


class Boring(BoringModel):
    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def training_step(self, batch, batch_idx):
        self.clock.now += 10
        return super().training_step(batch, batch_idx)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("callbacks.run_report.time", clock)
    monkeypatch.setattr(RunReport, "_report", lambda *_: None)
    return clock


def fit(clock, folder, epochs, resume=None):
    report = RunReport("title")
    trainer = Trainer(callbacks=[report], max_epochs=epochs, default_root_dir=folder, **QUIET, **LIMITS)
    trainer.fit(Boring(clock), ckpt_path=resume)
    trainer.save_checkpoint(folder / "last.ckpt")
    return report, trainer


def test_seconds_add_up_over_resumes(clock, tmp_path):
    first, _ = fit(clock, tmp_path, 1)
    assert first.seconds == 20
    clock.now += 5000  # between the parts
    second, trainer = fit(clock, tmp_path, 3, resume=tmp_path / "last.ckpt")
    assert second.seconds == 60
    clock.now += 5000
    trainer.test(Boring(clock), ckpt_path=tmp_path / "last.ckpt", verbose=False)
    assert second.seconds == 60  # the checkpoint of a test adds nothing


def test_state_holds_the_seconds_so_far(clock):
    report = RunReport("title")
    report.load_state_dict({})  # an older checkpoint
    assert report.state_dict()["seconds"] == 0.0
    report.load_state_dict({"seconds": 7.0})
    report.started = clock.now
    clock.now += 3
    assert report.state_dict()["seconds"] == 10.0


def test_state_key_does_not_depend_on_the_run():
    assert RunReport("a").state_key == RunReport("b", {"sample": True}).state_key == "RunReport"
