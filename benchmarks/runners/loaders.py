"""Loads a model into a runtime, set for the lowest latency at a number of threads."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
    return _compiled(path, threads, {"INFERENCE_PRECISION_HINT": "f32"})


def _openvino_default(path: str, threads: int) -> Run:
    return _compiled(path, threads, {})


def _compiled(path: str, threads: int, settings: Mapping[str, str]) -> Run:
    import openvino

    core = openvino.Core()
    settings = {
        **settings,
        "INFERENCE_NUM_THREADS": str(threads),
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


@dataclass(frozen=True)
class Runtime:
    """What runs models: the module that must be installed, and what loads a file with it."""

    module: str
    load: Callable[[str, int], Run]


_RUNTIMES = {
    "narrowpass": Runtime("narrowpass", _narrowpass),
    "onnxruntime": Runtime("onnxruntime", _onnxruntime),
    "openvino": Runtime("openvino", _openvino),
    "openvino-default": Runtime("openvino", _openvino_default),
    "executorch": Runtime("executorch", _executorch),
}
RUNTIMES = tuple(_RUNTIMES)


def load(runtime: str, path: str, threads: int) -> Run:
    """Return what runs a model.

    Args:
        runtime: one of `RUNTIMES`. narrowpass runs on its native backend, onnxruntime with all its
            optimizations, OpenVINO without narrowing float32 by itself; ``openvino-default``
            computes in bfloat16 where the processor has instructions for it.
        path: a file that the runtime reads: ONNX, a bundle, OpenVINO's XML, ExecuTorch's ``.pte``.
        threads: how many compute.
    """
    return _RUNTIMES[runtime].load(path, threads)


def installed() -> list[str]:
    """Return the runtimes that can be imported."""
    return [name for name in RUNTIMES if importlib.util.find_spec(module(name)) is not None]


def module(runtime: str) -> str:
    """Return the name of the module that a runtime is in."""
    return _RUNTIMES[runtime].module


def reader(samples: Iterable[Feeds]) -> Any:
    """Return samples as the quantizers of onnxruntime read them."""
    from onnxruntime.quantization import CalibrationDataReader

    left = iter(samples)

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
        def get_next(self) -> Feeds | None:
            return next(left, None)

    return Reader()
