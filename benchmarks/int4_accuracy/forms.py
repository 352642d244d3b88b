"""The forms that are compared: how each is built, and what runs it."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from decoder_graph import Decoder
from gguf_model import Gguf
from peers import Peer
from scores import Run

import narrowpass

Array = np.ndarray[Any, Any]

DATA = ("gptq", "awq", "scale")
"""Methods that see calibration samples."""


@dataclass(frozen=True)
class Form:
    """A quantized decoder.

    Attributes:
        run: computes logits.
        bits: of a weight of the layers between embedding and head, scales and zero points included.
    """

    run: Run
    bits: float


def needs_data(text: str) -> bool:
    """Return whether a form depends on the calibration samples."""
    return any(method in text for method in DATA) and not text.startswith("gguf")


class Forms:
    """Builds each form of the model, and what runs it.

    Args:
        gguf: the model.
        folder: where files go.
        samples: for methods with data: int64 [1, 512] each.
        interpreter: a Python that has the packages of other quantizers.
    """

    def __init__(
        self, gguf: Gguf, folder: Path, samples: Sequence[Array], interpreter: str
    ) -> None:
        self._model, self._folder, self._samples = gguf, folder, samples
        self._interpreter = interpreter
        self.float = folder / "float.onnx"
        if not self.float.exists():
            onnx.save(Decoder(gguf.sizes, gguf.weights).build(), self.float)

    def reference(self) -> Run:
        """Return what runs the float32 model."""
        return _narrowpass(self.float)

    @contextlib.contextmanager
    def form(self, text: str) -> Iterator[Form]:
        """Build a form.

        Raises:
            PeerError: another quantizer is not installed, or cannot quantize this model.
        """
        tool, _, rest = text.partition(" ")
        if tool in ("onnxruntime", "nncf"):
            with Peer(self._interpreter, tool, rest, self._folder) as peer:
                yield Form(peer.run, peer.quantize(self.float, self._samples))
        elif tool == "gguf":
            yield self._gguf(rest)
        elif tool == "gguf-file":
            yield self._gguf_file(Path(rest))
        else:
            yield self._ours(text)

    def _calibration(self) -> Iterator[dict[str, Array]]:
        return ({"ids": ids} for ids in self._samples)

    def _ours(self, text: str) -> Form:
        bundle = narrowpass.build(
            {"main": str(self.float)},
            f"fold,{text}",
            target="xnn-cpu",
            calibration=self._calibration if needs_data(text) else None,
        )
        (part,) = bundle.reports[-1].methods.values()
        narrow = [item["reason"] for item in part.decisions if item["decision"] == "int4"]
        bits = float(narrow[0].partition(" ")[0]) if narrow else math.nan
        return Form(_narrowpass(bundle), bits)

    def _dequantized(self, convert: Callable[[str, Array], Array]) -> Run:
        weights = {key: convert(key, array) for key, array in self._model.weights.items()}
        path = self._folder / "gguf.onnx"
        onnx.save(Decoder(self._model.sizes, weights).build(), path)
        return _narrowpass(path)

    def _gguf_file(self, path: Path) -> Form:
        other = Gguf(path)
        layers = {k: b for k, b in other.bits.items() if k.startswith("blk.") and b < 32}
        sizes = [self._model.weights[key].size for key in layers]
        bits = float(np.average(list(layers.values()), weights=sizes))
        return Form(self._dequantized(lambda key, _: other.weights[key]), bits)

    def _gguf(self, kind: str) -> Form:
        from gguf import GGMLQuantizationType, dequantize, quantize

        def convert(name: str, array: Array) -> Array:
            if array.ndim < 2:
                return array
            chosen = GGMLQuantizationType[kind if name.startswith("blk.") else "Q8_0"]
            found: Array = dequantize(quantize(array, chosen), chosen)
            return found

        some = np.ones((32, 256), np.float32)
        bits = quantize(some, GGMLQuantizationType[kind]).nbytes * 8 / some.size
        return Form(self._dequantized(convert), bits)


def _narrowpass(model: Any) -> Run:
    program = narrowpass.load(model if not isinstance(model, Path) else str(model), "xnn-cpu")

    def run(ids: Array) -> Array:
        logits: Array = program.run({"ids": ids})["logits"][0]
        return logits

    return run
