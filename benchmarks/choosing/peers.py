"""Forms of a model by other tools, each on its own runtime, from the same samples and limit.

onnxruntime has no limit on errors: its forms are what its quantizers write by themselves. NNCF's
accuracy control takes operations back to float until the error on its validation data is within
the limit; its halves of the samples are those of `auto`: every second one is validated with.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
from gallery.model import Feeds
from runners.loaders import reader

from narrowpass_auto.limits import Limit

_AXIS = 13


@dataclass(frozen=True)
class Peer:
    """What builds and runs a form.

    Attributes:
        runtime: one of `runners.loaders.RUNTIMES`.
        module: what must be installed to build it.
        build: writes it to a folder, from the file of a model, samples and the text of a limit;
            returns its path.
    """

    runtime: str
    module: str
    build: Callable[[Path, Path, Sequence[Feeds], str], Path]


def _prepared(model: Path, folder: Path) -> Path:
    from onnxruntime import quantization

    ready = folder / "ready.onnx"
    if not ready.exists():
        quantization.quant_pre_process(str(model), str(ready), skip_symbolic_shape=True)
    return ready


def _dynamic(model: Path, folder: Path, samples: Sequence[Feeds], limit: str) -> Path:
    from onnxruntime import quantization

    target = folder / "dynamic.onnx"
    quantization.quantize_dynamic(
        _prepared(model, folder), target, weight_type=quantization.QuantType.QInt8
    )
    return target


def _static(model: Path, folder: Path, samples: Sequence[Feeds], limit: str) -> Path:
    """Quantize to QDQ, with the types that onnxruntime's manual advises for x86-64 with VNNI."""
    from onnxruntime import quantization

    ready, target = _prepared(model, folder), folder / "static.onnx"
    opset = next(
        item.version
        for item in onnx.load(ready, load_external_data=False).opset_import
        if item.domain in ("", "ai.onnx")
    )
    quantization.quantize_static(
        ready,
        target,
        reader(samples),
        quant_format=quantization.QuantFormat.QDQ,
        per_channel=opset >= _AXIS,  # a scale for each channel came with that operator set
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QInt8,
    )
    return target


def _accuracy_control(model: Path, folder: Path, samples: Sequence[Feeds], limit: str) -> Path:
    import nncf
    import openvino

    logging.getLogger("nncf").setLevel(logging.ERROR)
    wide = openvino.convert_model(model)
    validated = list(samples[1::2])
    bounded = Limit.parse(limit)

    def outputs(compiled: Any, feeds: Feeds) -> dict[str, Any]:
        return {str(at): array.copy() for at, array in enumerate(compiled(feeds).values())}

    compiled_wide = openvino.Core().compile_model(wide, "CPU")
    right = [outputs(compiled_wide, feeds) for feeds in validated]

    def validate(compiled: Any, data: Iterable[Feeds]) -> tuple[float, list[float]]:
        whole, single = bounded.meter(), []
        # NNCF ranks by subsets of the data: a sample is found by its identity.
        places = {id(feeds): place for place, feeds in enumerate(validated)}
        for feeds in data:
            found = outputs(compiled, feeds)
            alone = bounded.meter()
            for meter in (whole, alone):
                meter.add(right[places[id(feeds)]], found)
            single.append(-alone.error)
        return -whole.error, single

    built = nncf.quantize_with_accuracy_control(
        wide,
        nncf.Dataset(list(samples[::2])),
        nncf.Dataset(validated),
        validate,
        max_drop=bounded.bound,
        drop_type=nncf.DropType.ABSOLUTE,
        subset_size=len(samples[::2]),
    )
    target = folder / "nncf.xml"
    openvino.save_model(built, target, compress_to_fp16=False)
    return target


def _as_it_is(model: Path, folder: Path, samples: Sequence[Feeds], limit: str) -> Path:
    return model


_ALL = {
    "onnxruntime": Peer("onnxruntime", "onnxruntime", _as_it_is),
    "onnxruntime dynamic": Peer("onnxruntime", "onnxruntime", _dynamic),
    "onnxruntime static": Peer("onnxruntime", "onnxruntime", _static),
    "OpenVINO": Peer("openvino", "openvino", _as_it_is),
    "OpenVINO NNCF": Peer("openvino", "nncf", _accuracy_control),
}
PEERS: Mapping[str, Peer] = {
    name: peer for name, peer in _ALL.items() if importlib.util.find_spec(peer.module)
}
"""Those whose tools are installed, by the name of the runtime, and how types were chosen."""
