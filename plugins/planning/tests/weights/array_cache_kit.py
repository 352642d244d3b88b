"""A packer of tests, and weights that it packs into a cache of numpy arrays."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_planning.weights import Entry, UnusableError, Weight, array_cache
from narrowpass_planning.weights.file import HEADER, PackedFile
from narrowpass_planning.weights.folder import CacheFile

RNG = np.random.default_rng(20)
LAYOUT = 7
KNOWN = 11
"""An algorithm of `Packer`, whose fingerprint is its version."""


class Packer:
    """Packs as version `number`, on a processor of `generation`."""

    suffix = ".test-weights"

    def __init__(self, number: int = 1, generation: int = 5) -> None:
        self._number, self._generation = number, generation

    def build(self) -> str:
        return f"version {self._number}"

    def fingerprint(self, algorithm: int) -> int:
        if algorithm != KNOWN:
            raise UnusableError(f"no algorithm {algorithm}")
        return self._generation

    def packs_alike(self, algorithm: int, value: int) -> bool:
        return algorithm == KNOWN and value == self._generation


def pack(session, array, identity, *, layout=LAYOUT):
    """Pack the transposed matrix."""

    def write(block, kernel, bias, scales):
        assert bias is None
        assert scales is None
        block.view(np.float32).reshape(array.shape[::-1])[...] = kernel.T

    weight = Weight.of(array, identity)
    return session.pack_own("matmul", (), weight, None, None, layout, array.nbytes, write)


def floats(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def stored(folder: Path, *arrays: np.ndarray[Any, Any], packer: Packer | None = None) -> CacheFile:
    """Write a file of packed matrices, named by their places."""
    file = CacheFile(folder, "k", packer or Packer())
    with array_cache().begin() as session:
        for number, array in enumerate(arrays):
            pack(session, array, f"{number}")
    with file.writing() as mine:
        assert mine
        file.write(session.entries(), None)
    return file


def entries(path: Path) -> list[Entry]:
    """Return the blocks of a file, with their addresses."""
    return list(PackedFile(path, Packer()).addressed())


def index_of(path: Path) -> dict[str, Any]:
    """Return the index of a file."""
    whole = path.read_bytes()
    found: dict[str, Any] = json.loads(whole[struct.unpack_from("<Q", whole, 16)[0] :])
    return found


def rewrite(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the index of a file, and write it again with the right checksums.

    Args:
        path: of the file.
        change: changes the index, or returns bytes to put in its place.
    """
    whole = path.read_bytes()
    start = struct.unpack_from("<Q", whole, 16)[0]
    index = json.loads(whole[start:])
    other = change(index)
    text = other if isinstance(other, bytes) else json.dumps(index).encode()
    header = bytearray(whole[:96])
    struct.pack_into("<Q", header, 24, len(text))
    header[32:64] = hashlib.sha256(text).digest()
    path.write_bytes(bytes(header) + hashlib.sha256(header).digest() + whole[HEADER:start] + text)


def model_of(**weights: np.ndarray[Any, Any]) -> ir.Model:
    """Return a model that adds weights, [40, 40] or less, to its input."""
    value = ir.Value(name="x", shape=ir.Shape([40]), type=ir.TensorType(ir.DataType.FLOAT))
    held, nodes, last = [], [], value
    for name, array in weights.items():
        tensor = ir.tensor(array, name=name)
        shape, kind = tensor.shape, ir.TensorType(tensor.dtype)
        held.append(ir.Value(name=name, const_value=tensor, shape=shape, type=kind))
        nodes.append(ir.node("Add", [last, held[-1]]))
        last = nodes[-1].outputs[0]
    last.name, last.type = "y", ir.TensorType(ir.DataType.FLOAT)
    last.shape = ir.Shape([40, 40])
    graph = ir.Graph(
        [value], [last], nodes=nodes, initializers=held, opset_imports={"": 18}, name="g"
    )
    return ir.Model(graph, ir_version=9)
