"""Inferred types, written to the values of a model."""

from __future__ import annotations

import onnx
import onnx_ir as ir

_ML = "ai.onnx.ml"
_ROWS = {
    "LinearClassifier": (1, 2),
    "LinearRegressor": (2,),
    "SVMClassifier": (1, 2),
    "SVMRegressor": (2,),
    "TreeEnsemble": (2,),
    "TreeEnsembleClassifier": (1, 2),
    "TreeEnsembleRegressor": (2,),
}
"""Operators of ai.onnx.ml on rows of features, which ONNX does not infer: ranks of their outputs.

The last of these is of floats; a label's type follows from the schema.
"""


def apply_type(value: ir.Value, proto: onnx.TypeProto) -> None:
    """Write an inferred type; dimensions below 0 are unknown."""
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    kind = ir.serde.deserialize_type_proto_for_type(proto)
    if kind is not None and not (isinstance(kind, ir.TensorType) and kind.dtype == 0):
        value.type = kind
    if shape is not None:
        value.shape = ir.Shape(
            [None if isinstance(dim, int) and dim < 0 else _dimension_value(dim) for dim in shape]
        )


def apply_row_shapes(node: ir.Node, value: ir.Value) -> None:
    """Set the rank of an output of an operator on rows of features, and the type of scores."""
    if node.domain != _ML:
        return
    ranks, at = _ROWS.get(node.op_type, ()), value.index()
    if at is None or at >= len(ranks) or value.shape is not None:
        return
    given = node.inputs[0] if node.inputs else None
    dims = [] if given is None or given.shape is None else list(given.shape)
    rows: dict[int, int | ir.SymbolicDim | None] = {1: 1, 2: dims[0] if dims else None}
    value.shape = ir.Shape([rows.get(len(dims)), *[None] * (ranks[at] - 1)])
    if value.type is None and ranks[at] == 2:
        double = node.op_type == "TreeEnsemble" and given is not None and given.dtype is not None
        value.type = ir.TensorType(given.dtype if double and given else ir.DataType.FLOAT)  # type: ignore[arg-type]


def _dimension_value(dim: int | ir.SymbolicDim) -> int | str | None:
    return dim if isinstance(dim, int) else dim.value
