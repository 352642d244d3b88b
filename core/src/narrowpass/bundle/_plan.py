"""What of a bundle's models goes into the data map, and under which keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_ir.io import shape_operands
from narrowpass_ir.io.steps import initializers
from narrowpass_ir.tensors.distinct import first_equal
from narrowpass_ir.tensors.safetensors import is_reserved
from narrowpass_ir.tensors.streaming import default_threads

EXTERNAL_BYTES = 256
"""Initializers of fewer bytes stay inside the ONNX file."""


@dataclass(frozen=True)
class Stored:
    """An initializer whose tensor is in the data map."""

    method: str
    scope: str
    value: ir.Value
    tensor: ir.TensorProtocol

    @property
    def name(self) -> str:
        """The initializer's name."""
        return self.value.name or ""


@dataclass(frozen=True)
class Plan:
    """The data map of some methods.

    Attributes:
        tensors: every distinct tensor once, by data key, in the order of the weights file.
        keys: the data key of each stored initializer, by method and value.
        initializers: all of them, in the order of the methods and of their graphs.
    """

    tensors: Mapping[str, ir.TensorProtocol]
    keys: Mapping[tuple[str, ir.Value], str]
    initializers: tuple[Stored, ...]

    def of(self, method: str) -> Mapping[ir.Value, str]:
        """Return the data keys of one method's initializers."""
        return {value: key for (name, value), key in self.keys.items() if name == method}


def create_plan(methods: Mapping[str, ir.Model], threads: int | None = None) -> Plan:
    """Decide which initializers are stored, which are the same tensor, and under which key.

    Raises:
        ModelError: a tensor's source cannot be read.
    """
    stored = [item for name, model in methods.items() for item in _stored(name, model)]
    same = first_equal([item.tensor for item in stored], threads or default_threads())
    firsts = sorted(set(same))
    names = _keys([stored[index] for index in firsts])
    key_of = dict(zip(firsts, names, strict=True))
    return Plan(
        {key: stored[index].tensor for index, key in key_of.items()},
        {(item.method, item.value): key_of[i] for item, i in zip(stored, same, strict=True)},
        tuple(stored),
    )


def _stored(method: str, model: ir.Model) -> Iterator[Stored]:
    inline = shape_operands(model)
    # onnx's own loader looks for external data in the graph and its subgraphs only.
    for function in model.functions.values():
        for graph in function.subgraphs():
            inline.update(graph.initializers.values())
    for scope, value in initializers(model):
        tensor = value.const_value
        if tensor is None or value in inline:
            continue
        if tensor.dtype in (ir.DataType.STRING, ir.DataType.UNDEFINED):
            continue
        if tensor.nbytes >= EXTERNAL_BYTES:
            yield Stored(method, scope, value, tensor)


def _keys(items: Sequence[Stored]) -> list[str]:
    """Name distinct tensors: the initializer's own name, or with its method where that is taken.

    Own names are assigned first, so that a generated key never takes a name that an initializer
    really has.
    """
    keys: dict[int, str] = {}
    taken: set[str] = set()
    for index, item in enumerate(items):
        if item.name not in taken and not is_reserved(item.name):
            taken.add(item.name)
            keys[index] = item.name
    for index, item in enumerate(items):
        if index in keys:
            continue
        key = base = f"{item.name}@{item.method}"
        number = 2
        while key in taken:
            key = f"{base}.{number}"
            number += 1
        taken.add(key)
        keys[index] = key
    return [keys[index] for index in range(len(items))]
