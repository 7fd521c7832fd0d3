"""The queue in front of the model."""

import asyncio
import time

import pytest

from zoo.service.batching import Batcher

BUSY = 0.03  # seconds of a call


def serve(scenario, run=None, **settings):
    """Run a scenario against a batcher; returns its result and the calls of the model."""
    calls = []

    def model(kind, texts):
        calls.append((kind, list(texts)))
        time.sleep(BUSY)
        return [run(kind, text) if run else (kind, text) for text in texts]

    async def main():
        batcher = Batcher(model, **settings)
        worker = asyncio.create_task(batcher.work())
        try:
            return await asyncio.wait_for(scenario(batcher), 10)
        finally:
            worker.cancel()
            batcher.thread.shutdown()

    return asyncio.run(main()), calls


async def several(batcher, texts, kind="a"):
    return await asyncio.gather(*(batcher.submit(kind, [text]) for text in texts))


def test_what_arrives_during_a_call_shares_the_next_one():
    async def scenario(batcher):
        first = asyncio.create_task(batcher.submit("a", ["0"]))
        await asyncio.sleep(BUSY / 3)
        return [await first, *await several(batcher, "1234")]

    found, calls = serve(scenario)
    assert found == [[("a", text)] for text in "01234"]
    assert [texts for _, texts in calls] == [["0"], ["1", "2", "3", "4"]]


def test_a_single_client_does_not_wait_for_company():
    async def scenario(batcher):
        start = time.perf_counter()
        for _ in range(3):
            await batcher.submit("a", ["x"])
        return time.perf_counter() - start

    seconds, calls = serve(scenario, max_wait=5.0)
    assert len(calls) == 3
    assert seconds < 1


def test_several_clients_wait_for_company_but_not_longer_than_allowed():
    async def scenario(batcher):
        await several(batcher, "12")
        start = time.perf_counter()
        late = asyncio.create_task(batcher.submit("a", ["3"]))
        await asyncio.sleep(0.02)
        await batcher.submit("a", ["4"])
        await late
        return time.perf_counter() - start

    seconds, calls = serve(scenario, max_wait=0.1)
    assert [texts for _, texts in calls] == [["1", "2"], ["3", "4"]]
    assert 0.1 <= seconds - BUSY < 0.5


def test_a_full_batch_does_not_wait_and_the_rest_follows():
    async def scenario(batcher):
        await several(batcher, "12")
        start = time.perf_counter()
        await several(batcher, "34567")
        return time.perf_counter() - start

    seconds, calls = serve(scenario, max_batch=2, max_wait=0.2)
    assert [texts for _, texts in calls] == [["1", "2"], ["3", "4"], ["5", "6"], ["7"]]
    assert seconds < 0.2 + 4 * BUSY + 0.15  # only the last text waited


def test_kinds_are_not_mixed_and_order_is_kept():
    async def scenario(batcher):
        return await asyncio.gather(
            batcher.submit("a", ["1", "2"]), batcher.submit("b", ["3"]), batcher.submit("a", ["4"])
        )

    found, calls = serve(scenario)
    assert found == [[("a", "1"), ("a", "2")], [("b", "3")], [("a", "4")]]
    assert calls == [("a", ["1", "2", "4"]), ("b", ["3"])]


def test_a_text_that_the_model_refuses_fails_alone():
    def run(kind, text):
        if text == "bad":
            raise ValueError("no such text")
        return text

    async def scenario(batcher):
        asked = (batcher.submit("a", [text]) for text in ("1", "bad", "2"))
        return await asyncio.gather(*asked, return_exceptions=True)

    (one, bad, two), _ = serve(scenario, run)
    assert (one, two) == (["1"], ["2"])
    assert isinstance(bad, ValueError)


def test_texts_of_a_client_that_has_gone_are_dropped():
    async def scenario(batcher):
        first = asyncio.create_task(batcher.submit("a", ["0"]))
        await asyncio.sleep(BUSY / 3)
        gone = asyncio.create_task(batcher.submit("a", ["1", "2"]))
        await asyncio.sleep(0)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        return [await first, await batcher.submit("a", ["3"])]

    _, calls = serve(scenario)
    assert [texts for _, texts in calls] == [["0"], ["3"]]


def test_calls_are_observed():
    seen = []
    serve(lambda batcher: several(batcher, "123"), observe=lambda texts, seconds: seen.append((texts, seconds)))
    ((texts, seconds),) = seen
    assert texts == 3
    assert seconds >= BUSY
