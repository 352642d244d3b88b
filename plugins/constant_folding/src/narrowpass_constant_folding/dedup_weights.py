"""The pass ``dedup-weights``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import onnx_ir as ir

from narrowpass import Pass, PassResult
from narrowpass.io import MappedTensor
from narrowpass_constant_folding.graphs.names import Names
from narrowpass_constant_folding.graphs.scopes import nested_graphs
from narrowpass_constant_folding.report import Report

if TYPE_CHECKING:
    from narrowpass import Context

_SAMPLES = 8
_SAMPLE_BYTES = 64
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class DedupWeights(Pass):
    """Keep one of several initializers of the same type, shape and bytes.

    Initializers that are also graph inputs stay, since a caller may override them, and so do those
    that are outputs. Weights are compared by a few samples first: the whole of one is read only if
    these are equal.
    """

    name: ClassVar[str] = "dedup-weights"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Merge equal initializers into the first of them, graph by graph.

        Counters: ``duplicates``.
        """
        report = Report()
        names = Names(model)
        for graph in nested_graphs(model.graph):
            _merge(graph, names, report)
        report.publish(ctx)
        return PassResult(model, bool(report.counters["duplicates"]))


def _merge(graph: ir.Graph, names: Names, report: Report) -> None:
    alike: dict[tuple[object, ...], list[ir.Value]] = {}
    for value in graph.initializers.values():
        tensor = value.const_value
        if tensor is None or value.is_graph_input():
            continue
        key = (tensor.dtype, tuple(tensor.shape.numpy()))
        alike.setdefault(key, []).append(value)
    for values in alike.values():
        if len(values) > 1:
            for first, other in _pairs(values):
                _replace(names, report, first, other)


def _pairs(values: list[ir.Value]) -> Iterator[tuple[ir.Value, ir.Value]]:
    """Give each value that is equal to one before it, with that one."""
    by_sample: dict[object, list[ir.Value]] = {}
    for value in values:
        firsts = by_sample.setdefault(_sample(_tensor(value)), [])
        first = next((one for one in firsts if _equal(_tensor(one), _tensor(value))), None)
        if first is None:
            firsts.append(value)
        else:
            yield first, value


def _tensor(value: ir.Value) -> ir.TensorProtocol:
    if value.const_value is None:
        raise ValueError(f"{value.name!r} has no data")
    return value.const_value


def _sample(tensor: ir.TensorProtocol) -> object:
    """Give some of the data, from places all over the tensor."""
    if tensor.dtype == ir.DataType.STRING:
        return tuple(bytes(text) for text in tensor.numpy().reshape(-1))
    last = max(0, int(tensor.nbytes) - _SAMPLE_BYTES)
    return b"".join(
        _part(tensor, index * last // (_SAMPLES - 1), _SAMPLE_BYTES) for index in range(_SAMPLES)
    )


def _equal(left: ir.TensorProtocol, right: ir.TensorProtocol) -> bool:
    """Whether two tensors of equal samples, type and shape have the same bytes."""
    if left is right or left.dtype == ir.DataType.STRING:
        return True
    mapped = isinstance(left, MappedTensor) and isinstance(right, MappedTensor)
    if mapped and left.file is right.file and left.offset == right.offset:
        return True
    return all(
        _part(left, place, _CHUNK_BYTES) == _part(right, place, _CHUNK_BYTES)
        for place in range(0, int(left.nbytes), _CHUNK_BYTES)
    )


def _part(tensor: ir.TensorProtocol, offset: int, size: int) -> bytes:
    """Read at most `size` bytes from `offset` on, without holding the rest."""
    if isinstance(tensor, MappedTensor):
        return tensor.read(offset, min(size, tensor.nbytes - offset))
    if tensor.nbytes <= _CHUNK_BYTES or tensor.dtype.bitwidth < 8:
        return tensor.tobytes()[offset : offset + size]
    flat = np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8)
    return flat[offset : offset + size].tobytes()


def _replace(names: Names, report: Report, first: ir.Value, other: ir.Value) -> None:
    graph = other.graph
    if graph is None or other.is_graph_output():
        return
    if names.ambiguous(first.name) or names.ambiguous(other.name):
        return
    other.replace_all_uses_with(first)
    del graph.initializers[other.name or ""]
    report.count("duplicates")
