"""Shapes of weights, which must be those of a configuration.

Shapes that broadcast would be computed with, and others fail in the first run.
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from narrowpass_decoders.config import Config
from narrowpass_decoders.weights import Blocks, Dense, Matrix, Weights
from narrowpass_ir.errors import ModelError

Shape = tuple[int, ...]


def decoder_shapes(config: Config) -> dict[str, Shape]:
    """Return the shape of each weight that a decoder may ask for, matrices as [N, K]."""
    width, head = config.width, config.head
    queries, keys = config.heads * head, config.groups * head
    layer = {
        "q": (queries, width),
        "k": (keys, width),
        "v": (keys, width),
        "o": (width, queries),
        "gate": (config.hidden, width),
        "up": (config.hidden, width),
        "down": (width, config.hidden),
        "q_norm": (head,),
        "k_norm": (head,),
        **dict.fromkeys(("norm1", "norm2", "norm1.post", "norm2.post"), (width,)),
    }
    found: dict[str, Shape] = {
        "embedding": (config.vocabulary, width),
        "head": (config.vocabulary, width),
        "norm": (width,),
    }
    if config.learned:
        found["positions"] = (config.learned, width)
    for number in range(config.layers):
        found |= {f"{number}.{name}": shape for name, shape in layer.items()}
    return found | {f"{name}.bias": shape[:1] for name, shape in found.items()}


class CheckedWeights:
    """Weights, each of which is refused where it has another shape than it should have."""

    def __init__(self, weights: Weights, shapes: Mapping[str, Shape]) -> None:
        self._weights, self._shapes = weights, shapes

    def has(self, name: str) -> bool:
        """Return whether there is such a weight."""
        return self._weights.has(name)

    def matrix(self, name: str) -> Matrix:
        """Return a matrix. Raises ModelError as `Weights.matrix` does, and for another shape."""
        found = self._weights.matrix(name)
        if isinstance(found, Dense):
            shape = _shape(found.tensor)
            self._check(name, shape[::-1] if found.columns else shape)
        elif isinstance(found, Blocks):
            self._check(name, _shape(found.integers))
        else:
            self._check(name, (_shape(found.integers)[0], found.inputs))
        return found

    def vector(self, name: str) -> ir.TensorProtocol:
        """Return a vector. Raises ModelError as `Weights.vector` does, and for another shape."""
        found = self._weights.vector(name)
        self._check(name, _shape(found))
        return found

    def _check(self, name: str, shape: Shape) -> None:
        wanted = self._shapes.get(name, shape)
        if shape != wanted:
            raise ModelError(
                f"weight {name!r} is {list(shape)}, and its configuration needs {list(wanted)}; "
                "one of both is of another model"
            )


def _shape(tensor: ir.TensorProtocol) -> Shape:
    return tuple(int(dim) for dim in tensor.shape.numpy())
