"""Small models, and passes run on them, for the tests of passes that narrow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from narrowpass import Bundle

Array = np.ndarray[Any, Any]
Shape = Sequence[int | str] | None


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Shape],
    outputs: Mapping[str, Shape],
    constants: Mapping[str, Any] | None = None,
    opset: int = 21,
    *,
    types: Mapping[str, int] | None = None,
    dtype: int = TensorProto.FLOAT,
    domains: Iterable[str] = (),
    ir_version: int = 10,
) -> onnx.ModelProto:
    """Build a model; values have `dtype` unless `types` has another, and nodes have names."""
    kinds = types or {}
    for index, node in enumerate(nodes):
        node.name = node.name or f"n{index}"

    def values(named: Mapping[str, Shape]) -> list[onnx.ValueInfoProto]:
        return [helper.make_tensor_value_info(n, kinds.get(n, dtype), s) for n, s in named.items()]

    held = [numpy_helper.from_array(np.asarray(a), name) for name, a in (constants or {}).items()]
    graph = helper.make_graph(list(nodes), "g", values(inputs), values(outputs), held)
    others = dict.fromkeys([*domains, *(node.domain for node in nodes if node.domain)])
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in others)]
    return helper.make_model(graph, opset_imports=imports, ir_version=ir_version)


def build(proto: onnx.ModelProto, text: str, samples: Iterable[Any] | None = None) -> Bundle:
    """Build with a pipeline, from a model object, which must not change."""
    before = proto.SerializeToString()
    given = None if samples is None else list(samples)
    bundle = narrowpass.build(
        ir.from_proto(proto),
        text,
        target="reference",
        calibration=None if given is None else (lambda: iter(given)),
    )
    assert proto.SerializeToString() == before
    return bundle


def rewritten(
    proto: onnx.ModelProto, text: str, samples: Iterable[Any] | None = None
) -> onnx.ModelProto:
    """Return the model after a pipeline; it is checked, and a second run changes nothing."""
    given = None if samples is None else list(samples)
    first = ir.to_proto(build(proto, text, given).methods["main"])
    onnx.checker.check_model(first, full_check=True)
    again = ir.to_proto(build(first, text, given).methods["main"])
    assert again.SerializeToString() == first.SerializeToString(), "a second run changes the model"
    return first


def verdicts(bundle: Bundle) -> dict[str, dict[str, Any]]:
    """Return the report of the last pass, by node."""
    (part,) = bundle.reports[-1].methods.values()
    return {item["node"]: item for item in part.decisions}
