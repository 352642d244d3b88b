"""A profile of the runs of a session, in the trace format of Chrome."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from narrowpass.runtime.backend import Program
from narrowpass_onnxruntime.session.providers import PROVIDER


class Profile:
    """The events of a session. Several threads may add to it.

    Args:
        prefix: how the name of the file begins.

    Attributes:
        start_ns: when it began, in nanoseconds of `time.time_ns`.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.start_ns = time.time_ns()
        self._began = time.perf_counter_ns()
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()

    def now(self) -> int:
        """Return the microseconds since it began."""
        return (time.perf_counter_ns() - self._began) // 1000

    def add(self, name: str, start: int, **args: str) -> None:
        """Add what has taken the time from `start`, in microseconds, until now."""
        self._append("Session", name, start, self.now() - start, args)

    def add_nodes(self, program: Program, feeds: dict[str, Any], start: int) -> None:
        """Run the program again, and add an event for each node, one after the other.

        Args:
            program: that ran.
            feeds: of the run.
            start: of the run, in microseconds; the first node begins there.
        """
        for row in program.profile(feeds, runs=1):
            duration = round(row.seconds * 1e6)
            args = {"op_name": row.op_type, "provider": PROVIDER, "kernel": row.kernel}
            self._append("Node", f"{row.node}_kernel_time", start, duration, args)
            start += duration

    def _append(
        self, category: str, name: str, start: int, duration: int, args: dict[str, str]
    ) -> None:
        event = {
            "cat": category,
            "pid": os.getpid(),
            "tid": threading.get_native_id(),
            "dur": duration,
            "ts": start,
            "ph": "X",
            "name": name,
            "args": args,
        }
        with self._lock:
            self._events.append(event)

    def write(self) -> str:
        """Write the file, and return its name: the prefix and the time."""
        stamp = datetime.fromtimestamp(self.start_ns / 1e9).astimezone()
        name = f"{self._prefix}_{stamp:%Y-%m-%d_%H-%M-%S}_{stamp.microsecond // 1000:03}.json"
        Path(name).write_text(json.dumps(self._events), encoding="utf-8")
        return name
