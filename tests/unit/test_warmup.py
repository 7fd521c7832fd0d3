"""The rates of `WarmupDecay`, step by step, and the number of steps that it is told."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.lr_scheduler import ExponentialLR

from callbacks import WarmupDecay
from callbacks.warmup import optimizer_steps, tell_steps
from datamodules.errors import UserError


def optimizer(*rates):
    return SGD([{"params": [nn.Parameter(torch.zeros(1))], "lr": rate} for rate in rates or (1.0,)])


def rates_of(scheduler):
    return [group["lr"] for group in scheduler.optimizer.param_groups]


def walk(scheduler, steps):
    """The rates with which each step is made, and those after the last."""
    seen = [rates_of(scheduler)]
    for _ in range(steps):
        scheduler.optimizer.step()
        scheduler.step()
        seen.append(rates_of(scheduler))
        assert scheduler.get_last_lr() == seen[-1]
    return seen


def lines(steps, rising, start, end):
    """By adding up: so much more in each step of the rise, then so much less."""
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
        (50, 0.2, 10, 1.0, 0.75),
        (50, 0.0, 0, 0.75, 0.0),
        (50, 0.1, 5, 0.75, 0.25),
        (7, 0.3, 2, 0.5, 2.0),
        (7, 1.0, 7, 1.0, 0.0),
        (9, 0.06, 1, 1.0, 0.0),
        (8, 0.06, 0, 1.0, 0.0),
        (10, 0.1, 1, 1.0, 1.0),
        (1, 0.06, 0, 1.0, 0.0),
        (1, 0.0, 0, 0.5, 0.0),
        (1, 1.0, 1, 1.0, 0.0),
        (1, 0.5, 0, 1.0, 0.0),
        (2, 0.5, 1, 1.0, 0.0),
    ],
)
def test_it_rises_and_then_goes_to_its_end_in_straight_lines(steps, warmup, rising, start, end):
    scheduler = WarmupDecay(optimizer(), warmup, start, end)
    scheduler.tell(steps)
    seen = [rate for (rate,) in walk(scheduler, steps + 3)]
    assert seen[:steps] == pytest.approx(lines(steps, rising, start, end), abs=1e-12)
    assert min(seen[:steps]) > 0  # no batch is wasted
    assert seen[steps:] == [end] * 4


def test_two_stages_make_one_line():
    first, second = WarmupDecay(optimizer(), 0.1, end=0.75), WarmupDecay(optimizer(), 0, start=0.75)
    first.tell(100)
    second.tell(270)  # three times the 90 steps in which the first one falls by a quarter
    rates = [rate for (rate,) in walk(first, 99) + walk(second, 270)]
    assert rates[10:] == pytest.approx([1 - k / 360 for k in range(361)])


def test_groups_keep_their_ratios():
    scheduler = WarmupDecay(optimizer(2e-3, 2e-4, 5e-5), 0.2, end=0.5)
    assert rates_of(scheduler) == [2e-3, 2e-4, 5e-5]  # for the table: the highest
    scheduler.tell(20)
    for step, rates in enumerate(walk(scheduler, 20)):
        assert rates == pytest.approx([rate * scheduler.factor(step) for rate in (2e-3, 2e-4, 5e-5)])
    assert rates_of(scheduler) == pytest.approx([1e-3, 1e-4, 2.5e-5])


@pytest.mark.parametrize(("start", "end", "highest"), [(0.75, 0.0, 0.75), (0.5, 2.0, 2.0)])
def test_before_it_knows_its_steps_it_shows_the_highest_rate_and_cannot_step(start, end, highest):
    scheduler = WarmupDecay(optimizer(0.1), 0.1, start, end)
    assert rates_of(scheduler) == [0.1 * highest]
    scheduler.optimizer.step()
    with pytest.raises(RuntimeError, match="does not know how many steps"):
        scheduler.step()


def test_telling_it_again_changes_nothing_and_other_steps_lead_on_from_here():
    scheduler, other = WarmupDecay(optimizer(), 0.1), WarmupDecay(optimizer(), 0.1)
    scheduler.tell(30)
    other.tell(60)
    walk(scheduler, 12)
    walk(other, 12)
    before = rates_of(scheduler)
    scheduler.tell(30)
    assert rates_of(scheduler) == before == scheduler.get_last_lr()
    scheduler.tell(60)
    assert walk(scheduler, 48) == walk(other, 48)


def test_a_resume_has_the_same_rates_to_the_bit():
    whole, cut = WarmupDecay(optimizer(0.3, 0.007), 0.1, 0.9, 0.1), WarmupDecay(optimizer(0.3, 0.007), 0.1, 0.9, 0.1)
    whole.tell(37)
    walk(whole, 11)
    cut.optimizer.load_state_dict(whole.optimizer.state_dict())
    cut.load_state_dict(whole.state_dict())
    cut.tell(37)
    assert walk(cut, 26) == walk(whole, 26)


def test_it_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler = WarmupDecay(optimizer())
        scheduler.tell(5)
        walk(scheduler, 5)


@pytest.mark.parametrize("settings", [{"warmup": -0.1}, {"warmup": 6}, {"start": -1}, {"end": -0.5}, {"end": math.nan}])
def test_settings_without_sense_are_refused(settings):
    with pytest.raises(ValueError, match=rf"{next(iter(settings))}=.* (share|factors) of"):
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
def test_steps_of_a_stage(epochs, batches, accumulate, max_steps, expected):
    trainer = SimpleNamespace(num_training_batches=batches, accumulate_grad_batches=accumulate, max_steps=max_steps)
    assert optimizer_steps(trainer, epochs) == expected


@pytest.mark.parametrize(("epochs", "batches"), [(-1, 10), (3, math.inf)])
def test_without_an_end_it_is_refused_and_other_schedulers_are_let_be(epochs, batches):
    schedulers = [ExponentialLR(optimizer(), 0.5), WarmupDecay(optimizer())]
    trainer = SimpleNamespace(num_training_batches=batches, accumulate_grad_batches=1, max_steps=-1)
    trainer.lr_scheduler_configs = [SimpleNamespace(scheduler=schedulers[0])]
    tell_steps(trainer, epochs)
    trainer.lr_scheduler_configs.append(SimpleNamespace(scheduler=schedulers[1]))
    with pytest.raises(UserError, match=r"give --trainer\.max_epochs or max_steps"):
        tell_steps(trainer, epochs)
