"""Worker processes of the linear engines."""

import os
import signal
import time

import pytest

from heads.engines.processes import Workers
from tests.support.errors import raises
from zoo.core.errors import UserError


def test_each_task_has_its_own_process():
    state = [0]

    def work(number):
        state[0] += 1
        return number, state[0], os.getpid()

    with Workers(work, 5, 2) as workers:
        got = []
        while len(got) < 5:
            got += workers.receive()
        assert workers.receive() == []
    assert sorted(number for number, _, _ in got) == list(range(5))
    assert {seen for _, seen, _ in got} == {1}  # what another has changed is not there
    assert len({process for _, _, process in got}) == 5


def drained(work, at_once=1):
    with Workers(work, 2, at_once) as workers:
        try:
            while True:
                workers.receive()
        finally:
            drained.processes = list(workers.running.values())


def test_killed_processes_are_reported():
    def work(number):
        if number:
            time.sleep(60)
        os.kill(os.getpid(), signal.SIGKILL)

    with raises(UserError, -9):
        drained(work, at_once=2)
    assert drained.processes
    assert not any(process.is_alive() for process in drained.processes)


def test_failed_processes_are_reported():
    with raises(UserError, 101):
        drained(lambda number: os._exit(101))


def test_errors_of_a_process_are_raised():
    def full(number):
        raise UserError("the disk is full")

    def wrong(number):
        raise ZeroDivisionError("not by zero")

    with raises(UserError, "the disk is full"):
        drained(full)
    with pytest.raises(RuntimeError, match="ZeroDivisionError: not by zero"):
        drained(wrong)


def test_leaving_the_context_ends_the_processes():
    begin = time.monotonic()
    with Workers(lambda number: time.sleep(60), 2, 2) as workers:
        assert workers.receive(0.1) == []
        processes = list(workers.running.values())
    assert time.monotonic() - begin < 30
    assert len(processes) == 2
    assert not any(process.is_alive() for process in processes)
