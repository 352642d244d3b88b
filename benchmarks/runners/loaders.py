"""Loads a model into a runtime, set for the lowest latency at a number of threads."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]
Run = Callable[[Feeds], list[Array]]


def _narrowpass(path: str, threads: int) -> Run:
    import narrowpass

    program = narrowpass.load(path, "xnn-cpu", threads=threads)
    return lambda feeds: list(program.run(feeds).values())


def _onnxruntime(path: str, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda feeds: session.run(None, feeds)


def _openvino(path: str, threads: int) -> Run:
    import openvino

    core = openvino.Core()
    settings = {
        "INFERENCE_PRECISION_HINT": "f32",
        "INFERENCE_NUM_THREADS": threads,
        "PERFORMANCE_HINT": "LATENCY",
    }
    request = core.compile_model(path, "CPU", settings).create_infer_request()

    def run(feeds: Feeds) -> list[Array]:
        results = request.infer(feeds, share_inputs=True, share_outputs=True)
        return [results[index] for index in range(len(results))]

    return run


def _executorch(path: str, threads: int) -> Run:
    import torch
    from executorch.extension.pybindings import portable_lib
    from executorch.runtime import Runtime

    portable_lib._unsafe_reset_threadpool(threads)  # noqa: SLF001  # no public one
    method = Runtime.get().load_program(path).load_method("forward")

    def run(feeds: Feeds) -> list[Array]:
        results = method.execute([torch.from_numpy(array) for array in feeds.values()])
        return [result.numpy() for result in results]

    return run


_LOADERS = {
    "narrowpass": _narrowpass,
    "onnxruntime": _onnxruntime,
    "openvino": _openvino,
    "executorch": _executorch,
}
RUNTIMES = tuple(_LOADERS)


def load(runtime: str, path: str, threads: int) -> Run:
    """Give what runs a model.

    Args:
        runtime: one of `RUNTIMES`. narrowpass runs on its native backend, onnxruntime with all its
            optimizations, OpenVINO without narrowing float32 by itself.
        path: a file that the runtime reads: ONNX, a bundle, OpenVINO's XML, ExecuTorch's ``.pte``.
        threads: how many compute.
    """
    return _LOADERS[runtime](path, threads)


def installed() -> list[str]:
    """Give the runtimes that can be imported."""
    return [name for name in RUNTIMES if importlib.util.find_spec(name) is not None]
