"""Metrics of the service in the text format of Prometheus."""

from __future__ import annotations

import os
from pathlib import Path

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
    multiprocess,
)

from zoo.core.files import is_alive

SHARED = "PROMETHEUS_MULTIPROC_DIR"  # folder in which workers keep their numbers, of the library
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Gauges:
    """What the service counts and measures; `text` adds up all workers."""

    def __init__(self) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each
        self.registry = registry = CollectorRegistry()
        forget_dead_workers()
        self.requests = Counter("zoo_requests", "HTTP requests", ["method", "path", "status"], registry=registry)
        self.seconds = Histogram(
            "zoo_request_seconds", "Duration of requests of the API", ["path"], buckets=SECONDS, registry=registry
        )
        self.in_progress = Gauge(
            "zoo_requests_in_progress", "Requests now", registry=registry, multiprocess_mode="livesum"
        )
        self.texts = Counter("zoo_texts", "Texts tagged", registry=registry)
        self.batch_size = Histogram("zoo_batch_texts", "Texts in a call of the model", buckets=SIZES, registry=registry)
        self.batch_seconds = Histogram(
            "zoo_batch_seconds", "Duration of a call of the model", buckets=SECONDS, registry=registry
        )
        self.reloads = Counter("zoo_model_reloads", "Changes of the checkpoint", ["result"], registry=registry)
        self.loaded = Gauge(
            "zoo_model_loaded_timestamp_seconds",
            "When the oldest model was loaded",
            registry=registry,
            multiprocess_mode="livemin",
        )

    def batch(self, texts: int, seconds: float) -> None:
        """Count a call of the model."""
        self.texts.inc(texts)
        self.batch_size.observe(texts)
        self.batch_seconds.observe(seconds)

    def text(self) -> bytes:
        if SHARED not in os.environ:
            return generate_latest(self.registry)
        every = CollectorRegistry()
        multiprocess.MultiProcessCollector(every)  # type: ignore[no-untyped-call]
        return generate_latest(every)


def forget_dead_workers() -> None:
    """Drop the gauges of workers that have crashed; their counters stay."""
    if folder := os.environ.get(SHARED):
        for file in Path(folder).glob("gauge_live*.db"):
            process = file.stem.rpartition("_")[2]
            if process.isdigit() and not is_alive(int(process)):
                file.unlink(missing_ok=True)
