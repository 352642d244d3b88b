"""Hashes of a model and of samples, which together identify a calibration."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

if TYPE_CHECKING:
    from narrowpass.runtime.backend import Feeds

_PIECE = 1 << 20


class _Hash:
    """SHA-256 of parts, each prefixed by its length, so that the boundaries of parts count."""

    def __init__(self) -> None:
        self._sha = hashlib.sha256()

    def part(self, data: bytes | str) -> None:
        raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
        self._sha.update(len(raw).to_bytes(8, "little"))
        self._sha.update(raw)

    def write(self, data: Any, /) -> int:
        """Hash bytes; the method that `tofile` of a tensor calls."""
        view = memoryview(data).cast("B")
        for start in range(0, len(view), _PIECE):
            self._sha.update(view[start : start + _PIECE])
        return len(view)

    def hexdigest(self) -> str:
        return self._sha.hexdigest()


def model_digest(model: ir.Model) -> str:
    """Return the SHA-256 of a model: what it computes, with the contents of its weights.

    Equal in all processes, wherever the weights are kept. Initializers are read one after the
    other. Names count, documentation and metadata of the model and its graph do not.

    Returns:
        64 hexadecimal digits.

    Raises:
        ModelError: weights in a file that cannot be read any more.
    """
    sha = _Hash()
    sha.part("model 1")
    _graph(sha, model.graph)
    for function in model.functions.values():
        sha.part("function")
        sha.part(_bytes(ir.serde.serialize_function(function)))
    return sha.hexdigest()


def _graph(sha: _Hash, graph: ir.Graph) -> None:
    for domain, version in sorted(graph.opset_imports.items()):
        sha.part(f"{domain} {version}")
    for value in (*graph.inputs, *graph.outputs):
        sha.part(_bytes(ir.serde.serialize_value(value)))
    for name, value in sorted(graph.initializers.items()):
        sha.part(f"initializer {name}")
        if value.const_value is not None:
            _tensor(sha, value.const_value)
    for node in graph:
        sha.part("node")
        sha.part(_bytes(ir.serde.serialize_node(node)))


def _tensor(sha: _Hash, tensor: ir.TensorProtocol) -> None:
    sha.part(f"{tensor.dtype.name} {tensor.shape.numpy()}")
    if isinstance(tensor, ir.StringTensor):
        for text in tensor.string_data():
            sha.part(text)
    elif hasattr(tensor, "tofile"):
        tensor.tofile(sha)
    else:
        sha.write(tensor.tobytes())


def _bytes(proto: Any) -> bytes:
    data: bytes = proto.SerializeToString(deterministic=True)
    return data


class DataDigest:
    """The SHA-256 of samples: names, types, shapes and elements, in order."""

    def __init__(self) -> None:
        self._sha = _Hash()

    def add(self, feeds: Feeds) -> None:
        """Hash a sample; arrays are read in pieces."""
        self._sha.part(f"sample {len(feeds)}")
        for name in sorted(feeds):
            array = np.asarray(feeds[name])
            self._sha.part(name)
            self._sha.part(f"{array.dtype.name} {array.shape}")
            if array.dtype.hasobject or array.dtype.kind in "US":
                for item in array.reshape(-1).tolist():
                    self._sha.part(item if isinstance(item, bytes) else str(item))
            else:
                self._sha.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8))

    def hexdigest(self) -> str:
        """Return the hash of the samples so far: 64 hexadecimal digits."""
        return self._sha.hexdigest()


def combined(parts: Iterable[str]) -> str:
    """Return the SHA-256 of several texts, as 64 hexadecimal digits."""
    sha = _Hash()
    for part in parts:
        sha.part(part)
    return sha.hexdigest()
