"""Measures each model in a process of its own: what crashes or hangs there is a row."""

from __future__ import annotations

import multiprocessing
from typing import Any

from gallery import collect
from measuring import Settings, measure


def measure_apart(name: str, settings: Settings, limit: float) -> dict[str, Any]:
    """Return the figures of a model, measured in another process; why there are none else."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(name, settings, theirs))
    process.start()
    theirs.close()
    row: dict[str, Any] = {"model": name}
    try:
        row |= ours.recv() if ours.poll(limit) else {"failure": f"not done after {limit:g} s"}
    except EOFError:
        process.join()
        row["failure"] = f"its process ended with {process.exitcode}"
    process.kill()
    process.join()
    return row


def _serve(name: str, settings: Settings, pipe: Any) -> None:
    try:
        model = next(model for model in collect() if model.name == name)
        pipe.send(measure(model, settings))
    except Exception as error:  # noqa: BLE001  # the table says what a file or a tool cannot do
        pipe.send({"failure": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"})
