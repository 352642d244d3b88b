"""The pass ``dedup-weights``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import onnx_ir as ir

from narrowpass import Pass, PassResult
from narrowpass_constant_folding.graphs.names import Names
from narrowpass_constant_folding.report import Report
from narrowpass_ir.io import MappedTensor
from narrowpass_ir.subgraphs import nested_graphs

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
    """Yield each value that is equal to one before it, with that one."""
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
    """Return some of the data, from places all over the tensor."""
    if tensor.dtype == ir.DataType.STRING:
        return tuple(bytes(text) for text in tensor.numpy().reshape(-1))
    last = max(0, int(tensor.nbytes) - _SAMPLE_BYTES)
    places = [index * last // (_SAMPLES - 1) for index in range(_SAMPLES)]
    return b"".join(_parts(tensor, places, _SAMPLE_BYTES))


def _equal(left: ir.TensorProtocol, right: ir.TensorProtocol) -> bool:
    """Whether two tensors of equal samples, type and shape have the same bytes."""
    if left is right or left.dtype == ir.DataType.STRING:
        return True
    if _place(left) is not None and _place(left) == _place(right):
        return True
    places = range(0, int(left.nbytes), _CHUNK_BYTES)
    pairs = zip(
        _parts(left, places, _CHUNK_BYTES), _parts(right, places, _CHUNK_BYTES), strict=True
    )
    return all(one == other for one, other in pairs)


def _place(tensor: ir.TensorProtocol) -> object:
    return (tensor.file, tensor.offset) if isinstance(tensor, MappedTensor) else None


def _parts(tensor: ir.TensorProtocol, places: Iterable[int], size: int) -> Iterator[bytes]:
    """Read at most `size` bytes from each of the places; of a mapped tensor, nothing else."""
    if isinstance(tensor, MappedTensor):
        for place in places:
            yield tensor.read(place, min(size, tensor.nbytes - place))
        return
    data = _bytes_of(tensor)
    for place in places:
        yield bytes(data[place : place + size])


def _bytes_of(tensor: ir.TensorProtocol) -> memoryview:
    """Return the bytes as they are stored in a file, without a copy where there need be none."""
    if tensor.dtype.bitwidth < 8 or sys.byteorder == "big":
        return memoryview(tensor.tobytes())
    return np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data


def _replace(names: Names, report: Report, first: ir.Value, other: ir.Value) -> None:
    graph = other.graph
    if graph is None or other.is_graph_output():
        return
    if names.is_shadowed(first.name) or names.is_shadowed(other.name):
        return
    other.replace_all_uses_with(first)
    del graph.initializers[other.name or ""]
    report.count("duplicates")
