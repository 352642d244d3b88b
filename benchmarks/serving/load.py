"""Users of Locust who ask a served model, in a process of their own, which gevent patches.

    python benchmarks/serving/load.py URL MODEL USERS SECONDS

Prints one JSON document: ``rate`` of answers in a second, and ``p50`` and ``p99`` of their times in
milliseconds. The first quarter of the time is not counted.
"""
# ruff: noqa: E402  # gevent patches sockets before others import them

from __future__ import annotations

from gevent import monkey

monkey.patch_all()

import json
import sys
import time
from typing import Any

import gevent
import numpy as np
from locust import FastHttpUser, task
from locust.env import Environment
from served import body_of


def main(url: str, model: str, users: int, seconds: float) -> None:
    """Let users ask until the time is over."""
    body, length = body_of(model)
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(length),
    }

    class User(FastHttpUser):
        """Asks, waits, and asks again."""

        host = url

        @task
        def ask(self) -> None:
            """Send a row."""
            self.client.post("/v2/models/m/infer", data=body, headers=headers)

    environment = Environment(user_classes=[User])
    runner = environment.create_local_runner()
    times: list[tuple[float, float]] = []
    failed: list[Any] = []

    @environment.events.request.add_listener
    def note(response_time: float, exception: Any, **_: Any) -> None:
        times.append((time.perf_counter(), response_time))
        if exception is not None:
            failed.append(exception)

    start = time.perf_counter()
    runner.start(users, spawn_rate=max(users, 1))
    gevent.sleep(seconds)
    end = time.perf_counter()
    runner.quit()
    if failed:
        raise SystemExit(f"{len(failed)} requests failed: {failed[0]}")
    first = start + seconds / 4
    kept = [took for at, took in times if first <= at <= end]
    p50, p99 = np.percentile(kept, (50, 99))
    print(json.dumps({"rate": len(kept) / (end - first), "p50": p50, "p99": p99}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]))
