"""Data and models for the calibration tests, and what runs in processes of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

from narrowpass import Samples
from narrowpass_int8_sym.calibration import CalibrationCache, Calibrator, Range, calibrate

Array = np.ndarray[Any, Any]
CALIBRATORS = ("minmax", "moving-average", "percentile", "l2", "entropy")
NAMES = ("x", "h", "r", "y")


def found(
    parts: Sequence[Array], calibrator: Calibrator | str, *, symmetric: bool = False
) -> Range:
    """Return the range of a value whose samples are `parts`."""
    chosen = Calibrator.of(calibrator)
    observer = chosen.observer("v", symmetric=symmetric)
    for number in range(chosen.rounds):
        if number:
            observer.next_round()
        for index, part in enumerate(parts, start=1):
            observer.observe(part, f"sample {index}")
    return observer.result()


def network(width: int = 8, seed: int = 0) -> ir.Model:
    """Build h = x · w, r = relu(h), y = r · v, for x [N, width]."""
    rng = np.random.default_rng(seed)
    weights = {name: rng.standard_normal((width, width)).astype(np.float32) for name in ("w", "v")}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
        helper.make_node("Relu", ["h"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "v"], ["y"], name="second"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", width])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto))


def data(count: int = 10, width: int = 8, seed: int = 1) -> list[dict[str, Array]]:
    """Build samples of 1 to 5 rows."""
    rng = np.random.default_rng(seed)
    return [
        {"x": rng.standard_normal((1 + index % 5, width)).astype(np.float32)}
        for index in range(count)
    ]


def samples(items: Sequence[dict[str, Array]]) -> Samples:
    """Return samples in memory."""
    return Samples("test data", lambda: items)


def calibrate_and_die(folder: str, calibrator: str, after: int) -> None:
    """Calibrate, and be killed after so many samples."""

    def progress(done: int, total: int) -> None:
        if done == after:
            os.kill(os.getpid(), signal.SIGKILL)

    calibrate(
        network(),
        NAMES,
        samples(data()),
        None,
        calibrator,
        symmetric=False,
        progress=progress,
        cache=CalibrationCache(Path(folder), every=2),
    )


def calibrate_on_event(folder: str, ready: Any, results: Any) -> None:
    """Wait for an event, calibrate, and put the ranges into a queue."""
    ready.wait()
    ranges = calibrate(
        network(),
        NAMES,
        samples(data()),
        None,
        "l2",
        symmetric=False,
        cache=CalibrationCache(Path(folder), every=1),
    )
    results.put(ranges)
