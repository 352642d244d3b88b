"""Weights of language models as their files hold them, and the protocol that the builders ask.

Their shapes must be those of a configuration: shapes that broadcast would be computed with, and
others fail in the first run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir

from narrowpass_decoders.config import Config
from narrowpass_ir.errors import ModelError


@dataclass(frozen=True)
class Dense:
    """A matrix of floats.

    Attributes:
        tensor: [N, K], outputs by inputs, as PyTorch's Linear and embeddings have it; [K, N] where
            `columns`.
        columns: whether it is [K, N].
    """

    tensor: ir.TensorProtocol
    columns: bool = False


@dataclass(frozen=True)
class Blocks:
    """A matrix of signed integers with a scale for each block along K: scale · integer.

    Attributes:
        integers: [N, K], int4 or int8.
        scales: [N, K / block], float16 or float32.
        block: elements of a block.
    """

    integers: ir.TensorProtocol
    scales: ir.TensorProtocol
    block: int


@dataclass(frozen=True)
class OffsetBlocks:
    """A matrix of unsigned integers with a scale and a zero point for each block along K.

    An element is scale · (integer - zero point), as com.microsoft's MatMulNBits has it.

    Attributes:
        integers: uint8 [N, K / block, block · bits / 8], the first element in the lowest bits.
        scales: [N, K / block], float16 or float32.
        zeros: [N, K / block], float32.
        bits: 4 or 8.
        block: elements of a block: a power of 2 from 16 on.
        inputs: K.
    """

    integers: ir.TensorProtocol
    scales: ir.TensorProtocol
    zeros: ir.TensorProtocol
    bits: int
    block: int
    inputs: int


Matrix = Dense | Blocks | OffsetBlocks


class Weights(Protocol):
    """Where a builder gets weights from, by the names that `narrowpass_decoders` documents.

    The same object is returned for the same name, so that methods share their tensors.
    """

    def has(self, name: str) -> bool:
        """Return whether there is such a weight."""

    def matrix(self, name: str) -> Matrix:
        """Return a matrix; an embedding is `Dense` or `Blocks`.

        Raises:
            ModelError: there is none, or it cannot be used.
        """

    def vector(self, name: str) -> ir.TensorProtocol:
        """Return a tensor of float32, such as a bias or the scale of a norm.

        Raises:
            ModelError: there is none, or it cannot be used.
        """


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
