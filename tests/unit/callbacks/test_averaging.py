"""Weight averaging, hook by hook: against a slow loop, in validation, in checkpoints and after a resume."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from backbones import BiLSTM
from callbacks import Stage, StageAveraging
from callbacks.transition import trained_state
from datamodules.batch import LabelSpace
from heads import Linear
from zoo.training.module import ZooModule

SPACE = LabelSpace(["a", "b", "c"], [9, 8, 1], num_documents=12, vocab_size=5)


class Run:
    """A module and its average; each step changes trained weights, frozen weights and a buffer."""

    def __init__(self, every=1, begin=0, accumulate=1):
        self.module = ZooModule(
            SPACE, lambda space: BiLSTM(space, embed_dim=3, hidden=2), lambda dim, space: Linear(dim, space)
        )
        self.module.register_buffer("counter", torch.zeros(2))
        self.module.head.classifier.bias.requires_grad = False
        self.accumulate, self.batches = accumulate, 0
        loop = SimpleNamespace(_should_accumulate=lambda: self.batches % accumulate > 0)
        self.trainer = SimpleNamespace(global_step=7, fit_loop=loop, state=SimpleNamespace(fn="fit"))
        self.trainer.strategy = SimpleNamespace(reduce_boolean_decision=lambda decision, all: decision)
        self.module.trainer = self.trainer
        self.trainer.num_training_batches, self.trainer.accumulate_grad_batches = 1000, accumulate
        stage = Stage("s", epochs=9, average_from=begin, average_every=every)
        self.schedule = SimpleNamespace(stage=stage, epoch=0, module=self.module, trainer=self.trainer)
        self.averaging = StageAveraging(self.schedule)
        self.generator = torch.Generator().manual_seed(0)

    def call(self, hook, *args):
        getattr(self.averaging, hook)(self.trainer, self.module, *args)

    def epoch(self, batches):
        """Run one epoch; return the weights at its start and after each optimizer step."""
        self.call("on_train_epoch_start")
        seen = [self.weights()]
        for batch in range(batches):
            self.batches += 1
            if self.batches % self.accumulate == 0:
                self.trainer.global_step += 1
                with torch.no_grad():
                    for value in self.module.state_dict().values():
                        if value.is_floating_point():
                            value += torch.randn(value.shape, generator=self.generator)
                seen.append(self.weights())
            self.call("on_train_batch_end", None, None, batch)
        self.schedule.epoch += 1
        return seen

    def weights(self):
        return {name: value.clone() for name, value in self.module.state_dict().items()}

    def saved(self):
        checkpoint = {"state_dict": self.module.state_dict()}
        state = self.averaging.state_dict()
        self.module.on_save_checkpoint(checkpoint)
        return {name: value.clone() for name, value in checkpoint["state_dict"].items()}, state

    def trained(self):
        return {name for name, p in self.module.named_parameters() if p.requires_grad}


def same(one, other):
    assert one.keys() == other.keys()
    return all(torch.equal(value, other[name]) for name, value in one.items())


def assert_average(run, chosen, last):
    """Expect a checkpoint with the mean of trained weights and the last value of everything else."""
    saved, _ = run.saved()
    trained = run.trained()
    assert {"counter", "head.classifier.bias"} <= saved.keys() - trained
    for name, value in saved.items():
        if name in trained:
            mean = torch.stack([weights[name].double() for weights in chosen]).mean(0).float()
            torch.testing.assert_close(value, mean, rtol=1e-5, atol=1e-6)
        else:
            assert torch.equal(value, last[name]), name
    assert same(run.weights(), last)  # training continues with its own weights


@pytest.mark.parametrize("every", [1, 3, 50])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_average_is_the_mean_of_initial_weights_and_every_nth_step(every, accumulate):
    run = Run(every, accumulate=accumulate)
    seen = run.epoch(10 * accumulate) + run.epoch(6 * accumulate)[1:]
    assert run.averaging.count == len(seen[::every])
    assert_average(run, seen[::every], seen[-1])


def test_epochs_shorter_than_average_every_are_averaged_at_their_end():
    run = Run(every=50)
    run.trainer.num_training_batches = 5
    seen = run.epoch(5) + run.epoch(5)[1:]
    assert run.averaging.count == 3
    assert_average(run, seen[::5], seen[-1])


def test_averaging_starts_at_average_from():
    run = Run(begin=1)
    last = run.epoch(4)[-1]
    saved, state = run.saved()
    assert state == {}
    assert same(saved, last)
    run.call("on_validation_start")
    assert same(run.weights(), last)
    run.call("on_validation_end")
    seen = run.epoch(3)
    assert_average(run, seen, seen[-1])


def test_no_average_without_average_from():
    run = Run(begin=None)
    run.epoch(3)
    assert run.module.averaged == {}
    assert run.averaging.state_dict() == {}


def test_validation_uses_the_average_and_checkpoints_always_hold_it():
    run = Run(every=2)
    last = run.epoch(4)[-1]
    expected, state = run.saved()
    own = {name: value.clone() for name, value in state["own"].items()}
    assert own.keys() == run.trained()
    assert same(own, {name: last[name] for name in own})
    kept = {id(value) for value in run.module.averaged.values()}
    for hook, held in (("on_validation_start", expected), ("on_validation_end", last)):
        run.call(hook)
        assert same(run.weights(), held)
        saved, state = run.saved()
        assert same(saved, expected)
        assert same(state["own"], own)
    assert {id(value) for value in run.module.averaged.values()} == kept  # one copy, in the same memory
    run.call("on_fit_end")
    assert same(run.weights(), expected)
    assert run.averaging.state_dict() == {}


def test_resume_restores_trained_and_averaged_weights():
    one, two = Run(every=3), Run(every=3)
    one.epoch(4)
    saved, state = one.saved()
    two.module.load_state_dict(saved)
    two.averaging.load_state_dict(state)
    two.call("on_fit_start")
    two.trainer.global_step = one.trainer.global_step
    two.generator.set_state(one.generator.get_state())
    assert same(one.weights(), two.weights())
    for run in (one, two):
        run.epoch(7)
    assert same(one.weights(), two.weights())
    assert same(one.saved()[0], two.saved()[0])
    assert one.averaging.count == two.averaging.count == 1 + 11 // 3


def test_testing_a_checkpoint_uses_the_average():
    run = Run()
    run.epoch(2)
    saved, state = run.saved()
    run.trainer.state.fn = "test"
    run.module.apply_average()
    run.averaging.load_state_dict(state)
    run.trainer.state.fn = "fit"
    run.call("on_fit_start")
    assert same(run.weights(), saved)


def test_tied_parameters_are_averaged_once_and_saved_under_both_names():
    run = Run()
    run.module.twin = nn.Linear(3, 5, bias=False)
    run.module.twin.weight = run.module.backbone.embedding.weight
    run.call("on_train_epoch_start")
    names = ("backbone.embedding.weight", "twin.weight")
    before = run.weights()[names[0]]
    with torch.no_grad():
        run.module.twin.weight.add_(2.0)
    run.trainer.global_step += 1
    run.batches += 1
    run.call("on_train_batch_end", None, None, 0)
    saved, _ = run.saved()
    for name in names:
        torch.testing.assert_close(saved[name], before + 1)
    assert set(names) <= dict(trained_state(run.module)).keys()
