"""Weights of language models as their files hold them, and the protocol that the builders ask."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import onnx_ir as ir


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
