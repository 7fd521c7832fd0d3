"""Windows of items that arrive slowly, fast or never."""

import threading
import time
from itertools import count

import pytest

from zoo.core.windows import arriving, windows


def reader_ends():
    deadline = time.monotonic() + 10
    while any(thread.name == "reader" for thread in threading.enumerate()):
        assert time.monotonic() < deadline, "the reader still runs"
        time.sleep(0.01)


@pytest.mark.parametrize("group", [windows, arriving])
@pytest.mark.parametrize("size", [1, 3, 100])
def test_all_items_in_order_and_no_window_above_its_size(group, size):
    found = list(group(iter(range(50)), size))
    assert [item for window in found for item in window] == list(range(50))
    assert all(0 < len(window) <= size for window in found)
    assert list(group([], size)) == []
    reader_ends()


def test_what_is_there_does_not_wait_for_what_is_not():
    more = threading.Event()

    def items():
        yield from "ab"
        assert more.wait(10)
        yield "c"

    found = arriving(items(), 100, wait=0.2)
    assert next(found) == ["a", "b"]
    more.set()
    assert list(found) == [["c"]]


def test_fast_items_fill_windows():
    sizes = []
    for window in arriving(range(1000), 100):
        sizes.append(len(window))
        time.sleep(0.01)  # the reader fills the next window
    assert sizes == [100] * 10


def test_a_reader_is_a_bounded_number_of_items_ahead():
    taken = []
    found = arriving((taken.append(i) or i for i in count()), 10)
    next(found)
    time.sleep(0.05)
    assert len(taken) <= 2 * 10 + 1
    found.close()
    reader_ends()


def test_an_error_comes_after_the_items_before_it():
    def items():
        yield 1
        raise ValueError("broken")

    found = arriving(items(), 10)
    assert next(found) == [1]
    with pytest.raises(ValueError, match="broken"):
        next(found)
    reader_ends()
