"""Tools that quantize a model, each as a function that returns what runs it."""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from runners.loaders import reader

from accuracy.tasks import Feeds, Outputs, Run, Task


class UnavailableError(Exception):
    """A tool that does not run here, and why."""


@dataclass(frozen=True)
class Quantized:
    """A quantized model.

    Attributes:
        prepare: quantizes; this is what is timed.
        load: returns what runs it.
    """

    prepare: Callable[[], None]
    load: Callable[[], Run]


Quantizer = Callable[[Task, Path, Path], Quantized]
"""Given the task, the float model of operator set 17 that all tools start from, and a folder."""


def ours(text: str, task: Task, model: Path, folder: Path) -> Quantized:
    """Our pass, on our backend."""
    import narrowpass

    narrowpass.load_plugins()  # imports are not what is timed
    bundle = folder / "ours.narrow"

    def prepare() -> None:
        data = None if "mode=dynamic" in text else list(task.calibration)
        narrowpass.build(model, text, bundle, target="xnn-cpu", calibration=data)

    def load() -> Run:
        program = narrowpass.load(bundle, backend="xnn-cpu")
        return lambda feeds: dict(program.run(feeds))

    return Quantized(prepare, load)


def plain(_task: Task, model: Path, _folder: Path) -> Quantized:
    """The float model, on onnxruntime."""
    return Quantized(lambda: None, lambda: _session(model))


def onnxruntime_static(method: str, task: Task, model: Path, folder: Path) -> Quantized:
    """The quantize_static of onnxruntime: Q/DQ, activations uint8, weights int8 per channel."""
    try:
        from onnxruntime import quantization
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as error:
        raise UnavailableError(f"onnxruntime's quantizer cannot be imported: {error}") from None
    logging.getLogger().setLevel(logging.ERROR)

    result = folder / "quantized.onnx"

    def prepare() -> None:
        ready = folder / "ready.onnx"
        quant_pre_process(model, ready, skip_symbolic_shape=True)
        quantization.quantize_static(
            ready,
            result,
            reader(task.calibration),
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            weight_type=quantization.QuantType.QInt8,
            per_channel=True,
            calibrate_method=getattr(quantization.CalibrationMethod, method),
        )

    return Quantized(prepare, lambda: _session(result))


def nncf(task: Task, model: Path, folder: Path) -> Quantized:
    """NNCF's post-training quantization, on OpenVINO."""
    try:
        import nncf as tool
        import openvino
    except ImportError as error:
        raise UnavailableError(f"NNCF cannot be imported: {error}") from None
    tool.set_log_level(logging.ERROR)
    result = folder / "quantized.xml"

    def prepare() -> None:
        built = tool.quantize(
            openvino.Core().read_model(model),
            tool.Dataset(list(task.calibration)),
            preset=tool.QuantizationPreset.MIXED,
            subset_size=len(task.calibration),
            model_type=tool.ModelType.TRANSFORMER if task.transformer else None,
        )
        openvino.save_model(built, result)

    def load() -> Run:
        compiled = openvino.Core().compile_model(result, "CPU")
        names = [output.any_name for output in compiled.outputs]

        def run(feeds: Feeds) -> Outputs:
            found = compiled(feeds)
            return {name: np.array(found[index]) for index, name in enumerate(names)}

        return run

    return Quantized(prepare, load)


def xnnpack_quantizer(_task: Task, _model: Path, _folder: Path) -> Quantized:
    """PyTorch's quantizer for XNNPACK, which ExecuTorch has.

    Raises:
        UnavailableError: always; with the reason.
    """
    try:
        importlib.import_module("executorch.backends.xnnpack.quantizer.xnnpack_quantizer")
    except ImportError as error:
        reason = f"XNNPACKQuantizer of ExecuTorch cannot be imported: {error}"
        raise UnavailableError(reason) from None
    raise UnavailableError("XNNPACKQuantizer of ExecuTorch takes modules of PyTorch, and no ONNX")


def _session(path: Path) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    read = {given.name for given in session.get_inputs()}

    def run(feeds: Feeds) -> Outputs:
        found = session.run(names, {name: feeds[name] for name in feeds if name in read})
        return dict(zip(names, found, strict=True))

    return run


def _ours(text: str) -> Quantizer:
    return functools.partial(ours, text)


QUANTIZERS: Mapping[str, Quantizer] = {
    "float32": plain,
    "int8-sym{mode=dynamic}": _ours("fold,int8-sym{mode=dynamic}"),
    "int8-sym{mode=static} alone": _ours(
        "fold,int8-sym{mode=static,smooth=false,bias-correction=false}"
    ),
    "int8-sym{mode=static}": _ours("fold,int8-sym{mode=static}"),
    "  tolerance=cosine:0.99": _ours("fold,int8-sym{mode=static,tolerance=cosine:0.99}"),
    "onnxruntime, min/max": functools.partial(onnxruntime_static, "MinMax"),
    "onnxruntime, percentile": functools.partial(onnxruntime_static, "Percentile"),
    "onnxruntime, entropy": functools.partial(onnxruntime_static, "Entropy"),
    "NNCF, OpenVINO": nncf,
    "ExecuTorch": xnnpack_quantizer,
}
"""By what the table says."""
