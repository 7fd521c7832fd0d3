"""Seconds of training over all parts of a continued run."""

import pytest
from pytorch_lightning import Trainer
from pytorch_lightning.demos.boring_classes import BoringModel

from callbacks import RunReport

QUIET = {
    "accelerator": "cpu",
    "logger": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "limit_train_batches": 2,
    "limit_val_batches": 0,
    "limit_test_batches": 1,
    "num_sanity_val_steps": 0,
}


class Clock:
    """Time passes only where a test says so."""

    def __init__(self):
        self.now = 100.0

    def monotonic(self):
        return self.now


class Boring(BoringModel):
    class space:  # noqa: N801
        counts = (1,)

    def __init__(self, clock):
        super().__init__()
        self.clock = clock

    def training_step(self, batch, batch_idx):
        self.clock.now += 10
        return super().training_step(batch, batch_idx)


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("callbacks.report.time", clock)
    monkeypatch.setattr("callbacks.report.LabelSpace", Boring.space)
    monkeypatch.setattr(RunReport, "_report", lambda *_: None)
    monkeypatch.setattr(Boring, "space", Boring.space())
    return clock


def fit(clock, folder, epochs, resume=None, report=None):
    report = report or RunReport("title")
    trainer = Trainer(callbacks=[report], max_epochs=epochs, default_root_dir=folder, **QUIET)
    trainer.fit(Boring(clock), ckpt_path=resume)
    trainer.save_checkpoint(folder / "last.ckpt")
    return report, trainer


def test_seconds_of_all_parts_are_added(clock, tmp_path):
    first, _ = fit(clock, tmp_path, 1)
    assert first.seconds == 20
    clock.now += 5000  # between the parts
    second, trainer = fit(clock, tmp_path, 3, resume=tmp_path / "last.ckpt")
    assert second.seconds == 60
    clock.now += 5000
    trainer.test(Boring(clock), ckpt_path=tmp_path / "last.ckpt", verbose=False)
    assert second.seconds == 60  # the checkpoint of a test adds nothing


def test_a_save_in_the_middle_holds_the_seconds_so_far(clock):
    report = RunReport("title")
    assert report.state_dict()["seconds"] == 0.0
    report.load_state_dict({"seconds": 7.0})
    report.started = clock.now
    clock.now += 3
    assert report.state_dict()["seconds"] == 10.0


def test_a_checkpoint_without_seconds_loads(clock, tmp_path):
    trainer = Trainer(callbacks=[], max_epochs=1, default_root_dir=tmp_path, **QUIET)
    trainer.fit(Boring(clock))
    trainer.save_checkpoint(tmp_path / "plain.ckpt")
    report, _ = fit(clock, tmp_path, 2, resume=tmp_path / "plain.ckpt")
    assert report.seconds == 20
    report = RunReport("title")
    report.load_state_dict({})
    assert report.seconds == 0


def test_the_key_of_the_state_does_not_depend_on_the_run():
    assert RunReport("a").state_key == RunReport("b", {"sample": True}).state_key == "RunReport"
