"""What a server counts, in the format that Prometheus reads."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from narrowpass_serve.errors import status_of

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)

CONTENT_TYPE = CONTENT_TYPE_LATEST
"""The media type of `Metrics.text`."""


class Metrics:
    """Counters of one server. Every method may be called from any thread."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "narrowpass_requests",
            "Requests that were answered, by status of HTTP.",
            ["model", "protocol", "status"],
            registry=registry,
        )
        self.latency = Histogram(
            "narrowpass_request_seconds",
            "Time from the last byte of a request to its answer, or to the end of its stream.",
            ["model", "protocol"],
            buckets=SECONDS,
            registry=registry,
        )
        self.rows = Histogram(
            "narrowpass_batch_rows",
            "Rows of each batch that ran.",
            ["model"],
            buckets=ROWS,
            registry=registry,
        )
        self.compute = Histogram(
            "narrowpass_batch_seconds",
            "Time that each batch ran.",
            ["model"],
            buckets=SECONDS,
            registry=registry,
        )
        self.waiting = Gauge(
            "narrowpass_waiting_requests",
            "Requests that wait for a batch.",
            ["model"],
            registry=registry,
        )
        self.sequences = Gauge(
            "narrowpass_sequences",
            "Sequences that are generated, or wait to be.",
            ["model", "state"],
            registry=registry,
        )
        self.tokens = Counter(
            "narrowpass_tokens",
            "Tokens of prompts, and tokens that were generated.",
            ["model", "kind"],
            registry=registry,
        )
        self.version = Gauge(
            "narrowpass_model_version",
            "The version of each model that is served; 0 for none.",
            ["model"],
            registry=registry,
        )
        self.loads = Counter(
            "narrowpass_model_loads",
            "Times that a model was loaded, or could not be.",
            ["model", "outcome"],
            registry=registry,
        )

    @contextlib.contextmanager
    def request(self, model: str, protocol: str) -> Iterator[None]:
        """Count the request that the block answers, and its time.

        Args:
            model: that is served; never a name that only a client knows.
            protocol: ``http``, ``grpc`` or ``openai``.
        """
        start, status = time.perf_counter(), 200
        try:
            yield
        except BaseException as error:
            status = status_of(error)
            raise
        finally:
            self.requests.labels(model, protocol, str(status)).inc()
            self.latency.labels(model, protocol).observe(time.perf_counter() - start)

    def text(self) -> bytes:
        """Return all of them."""
        return generate_latest(self._registry)
