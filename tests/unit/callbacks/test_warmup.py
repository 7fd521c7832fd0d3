"""Learning rates of `WarmupDecay` at every step, and the number of steps it is given."""

import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from callbacks import WarmupDecay
from callbacks.warmup import optimizer_steps, set_warmup_steps
from tests.support.errors import raises
from zoo.core.errors import UserError


def optimizer(*rates):
    return SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates or (1.0,)])


def rates_of(scheduler):
    return [group["lr"] for group in scheduler.optimizer.param_groups]


def walk(scheduler, steps):
    """Rates of each step, and after the last one."""
    seen = [rates_of(scheduler)]
    for _ in range(steps):
        scheduler.optimizer.step()
        scheduler.step()
        seen.append(rates_of(scheduler))
        assert scheduler.get_last_lr() == seen[-1]
    return seen


def lines(steps, rising, start, end):
    """The same rates by repeated addition."""
    seen, rate = [], 0.0
    for _ in range(rising):
        rate += start / rising
        seen.append(rate)
    rate = start
    for _ in range(steps - rising):
        seen.append(rate)
        rate -= (start - end) / (steps - rising)
    return seen


@pytest.mark.parametrize(
    ("steps", "warmup", "rising", "start", "end"),
    [
        (100, 0.06, 6, 1.0, 0.0),
        (50, 0.1, 5, 0.75, 0.25),
        (7, 0.3, 2, 0.5, 2.0),
        (7, 1.0, 7, 1.0, 0.0),
        (9, 0.06, 1, 1.0, 0.0),
        (8, 0.06, 0, 1.0, 0.0),
        (1, 0.06, 0, 1.0, 0.0),
        (1, 1.0, 1, 1.0, 0.0),
    ],
)
def test_warmup_and_decay_are_linear(steps, warmup, rising, start, end):
    scheduler = WarmupDecay(optimizer(), warmup, start, end)
    scheduler.set_steps(steps)
    seen = [rate for (rate,) in walk(scheduler, steps + 3)]
    assert seen[:steps] == pytest.approx(lines(steps, rising, start, end), abs=1e-12)
    assert min(seen[:steps]) > 0  # no step has a rate of 0
    assert seen[steps:] == [end] * 4


def test_parameter_groups_keep_their_ratios():
    scheduler = WarmupDecay(optimizer(2e-3, 2e-4, 5e-5), 0.2, end=0.5)
    assert rates_of(scheduler) == [2e-3, 2e-4, 5e-5]  # the peak rate
    scheduler.set_steps(20)
    for step, rates in enumerate(walk(scheduler, 20)):
        assert rates == pytest.approx([rate * scheduler.factor(step) for rate in (2e-3, 2e-4, 5e-5)])
    assert rates_of(scheduler) == pytest.approx([1e-3, 1e-4, 2.5e-5])


@pytest.mark.parametrize(("start", "end", "highest"), [(0.75, 0.0, 0.75), (0.5, 2.0, 2.0)])
def test_without_a_step_count_the_peak_rate_is_shown_and_stepping_fails(start, end, highest):
    scheduler = WarmupDecay(optimizer(0.1), 0.1, start, end)
    assert rates_of(scheduler) == [0.1 * highest]
    scheduler.optimizer.step()
    with raises(RuntimeError, "WarmupDecay"):
        scheduler.step()


def test_changing_the_step_count_continues_from_the_current_step():
    scheduler, other = WarmupDecay(optimizer(), 0.1), WarmupDecay(optimizer(), 0.1)
    scheduler.set_steps(30)
    other.set_steps(60)
    walk(scheduler, 12)
    walk(other, 12)
    before = rates_of(scheduler)
    scheduler.set_steps(30)
    assert rates_of(scheduler) == before == scheduler.get_last_lr()
    scheduler.set_steps(60)
    assert walk(scheduler, 48) == walk(other, 48)


def test_resume_is_bit_exact():
    whole, cut = WarmupDecay(optimizer(0.3, 0.007), 0.1, 0.9, 0.1), WarmupDecay(optimizer(0.3, 0.007), 0.1, 0.9, 0.1)
    whole.set_steps(37)
    walk(whole, 11)
    cut.optimizer.load_state_dict(whole.optimizer.state_dict())
    cut.load_state_dict(whole.state_dict())
    cut.set_steps(37)
    assert walk(cut, 26) == walk(whole, 26)


@pytest.mark.parametrize("settings", [{"warmup": -0.1}, {"warmup": 6}, {"start": -1}, {"end": -0.5}, {"end": math.nan}])
def test_invalid_settings_are_rejected(settings):
    with raises(UserError, f"{next(iter(settings))}="):
        WarmupDecay(optimizer(), **settings)


@pytest.mark.parametrize(
    ("epochs", "batches", "accumulate", "max_steps", "expected"),
    [
        (3, 10, 1, -1, 30),
        (3, 10, 4, -1, 9),
        (3, 10, 100, -1, 3),
        (0, 10, 1, -1, 0),
        (3, 10, 1, 7, 7),
        (3, 10, 1, 70, 30),
        (-1, 10, 2, 70, 70),
        (3, math.inf, 2, 70, 70),
    ],
)
def test_number_of_optimizer_steps(epochs, batches, accumulate, max_steps, expected):
    trainer = SimpleNamespace(num_training_batches=batches, accumulate_grad_batches=accumulate, max_steps=max_steps)
    assert optimizer_steps(trainer, epochs) == expected


@pytest.mark.parametrize(("epochs", "batches"), [(-1, 10), (3, math.inf)])
def test_unbounded_training_is_rejected_for_warmup_only(epochs, batches):
    schedulers = [ExponentialLR(optimizer(), 0.5), WarmupDecay(optimizer())]
    trainer = SimpleNamespace(num_training_batches=batches, accumulate_grad_batches=1, max_steps=-1)
    trainer.lr_scheduler_configs = [SimpleNamespace(scheduler=schedulers[0])]
    set_warmup_steps(trainer, epochs)
    trainer.lr_scheduler_configs.append(SimpleNamespace(scheduler=schedulers[1]))
    with raises(UserError, "`trainer.max_epochs`", "`trainer.max_steps`"):
        set_warmup_steps(trainer, epochs)
