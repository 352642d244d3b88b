"""Models and inputs of the tests, with their results by numpy."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import narrowpass
from narrowpass_testing import model_from_text

QUIET = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
"""Marks of tests with a cluster: Ray warns of its own use of its own options."""

TOLERANCE = 1e-5
"""For accumulators of 8 float32 terms of magnitude 1: 8 · 2⁻²⁴ · 8, in any order of additions."""

WEIGHT = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)


def linear_bundle(folder: Path, rows: str = "N") -> str:
    """Write a bundle of ``y = relu(x @ WEIGHT)``; `rows` is its first dimension."""
    values = ", ".join(str(float(v)) for v in WEIGHT.reshape(-1))
    model = model_from_text(f"""
        g (float[{rows}, 8] x) => (float[{rows}, 3] y)
        <float[8, 3] w = {{{values}}}> {{
            h = MatMul(x, w)
            y = Relu(h)
        }}
    """)
    path = folder / "linear.narrow"
    narrowpass.build(model, "", path)
    return str(path)


def expected(x: Any) -> Any:
    """Return what the linear bundle computes, in float64."""
    return np.maximum(np.asarray(x, np.float64) @ WEIGHT.astype(np.float64), 0)


def token_bundle(folder: Path) -> str:
    """Write a bundle of tokens: ``double = 2 ids``, ``total`` of ids where the mask is 1."""
    model = model_from_text("""
        g (int64[N, S] ids, int64[N, S] mask) => (int64[N, S] double, int64[N] total)
        <int64[1] axis = {1}> {
            double = Add(ids, ids)
            kept = Mul(ids, mask)
            total = ReduceSum<keepdims = 0>(kept, axis)
        }
    """)
    path = folder / "tokens.narrow"
    narrowpass.build(model, "", path)
    return str(path)


def rows_of(seed: int, count: int) -> Any:
    """Return rows of the linear bundle; float32 of shape [count, 8]."""
    return np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)


def write_parquet(folder: Path, files: int, rows: int, group: int) -> Any:
    """Write files of rows with an id; return all rows in order."""
    folder.mkdir()
    parts = []
    for number in range(files):
        x = rows_of(number, rows)
        first = number * rows
        table = pa.table({"id": np.arange(first, first + rows), "x": list(x)})
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=group)
        parts.append(x)
    return np.concatenate(parts)


def results(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of an output folder, in the order of source and row."""
    rows = pq.read_table(folder).to_pylist()
    return sorted(rows, key=lambda row: (row["source"], -1 if row["row"] is None else row["row"]))


def write_json(path: Path, rows: list[Any]) -> None:
    """Write JSON lines; texts as they are."""
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


POISON = 1e6
"""A first element that ends the process that looks at it."""


def ending(batch: dict[str, Any]) -> dict[str, Any]:
    """End the process without a word where a row is poisoned, as a kernel out of memory would."""
    if any(float(row[0]) == POISON for row in batch["x"]):
        os.kill(os.getpid(), signal.SIGKILL)
    return {"x": batch["x"]}


def slow(batch: dict[str, Any]) -> dict[str, Any]:
    """Take long enough for a node to be ended meanwhile."""
    time.sleep(0.05)
    return {"x": batch["x"]}
