"""Types that ONNX infers, without its known errors, and how they are written to values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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


_POOLS = frozenset({"AveragePool", "LpPool", "MaxPool"})
_POOLS_REPAIRED = 22
"""The first operator set of whose pools ONNX's inference leaves out those output pixels whose
kernel begins beyond the image, as with a ``ceil_mode``."""


def infer_node_types(
    schema: onnx.defs.OpSchema,
    node: onnx.NodeProto,
    types: Mapping[str, onnx.TypeProto],
    data: Mapping[str, onnx.TensorProto],
    imports: Sequence[onnx.OperatorSetIdProto],
) -> dict[str, onnx.TypeProto]:
    """Return the types of a node's outputs, by name: those of onnx's inference, repaired.

    What onnx 1.23 infers wrongly is inferred in another way, or has unknown dimensions: STFT
    without ``onesided``, pools with ``ceil_mode`` below operator set 22, Attention with a past or
    with unknown dimensions, and ConvTranspose with ``output_padding`` and an ``auto_pad`` of SAME.

    Args:
        schema: of the operator in the operator set that the model imports.
        node: with names of `types` as inputs.
        types: of the inputs, and of what subgraphs of the node read.
        data: the elements of inputs that shapes may follow from.
        imports: the operator sets of the model.

    Raises:
        onnx.shape_inference.InferenceError: the node contradicts the schema. Others of onnx's
            errors, ValueError and RuntimeError are of nodes that it cannot read.
    """
    if not node.domain:
        if node.op_type == "STFT":
            node = _with_one_side(node)
        elif node.op_type in _POOLS and _attribute(node, "ceil_mode"):
            version = max(schema.since_version, _POOLS_REPAIRED)
            schema = onnx.defs.get_schema(node.op_type, version)
    found: dict[str, onnx.TypeProto] = onnx.shape_inference.infer_node_outputs(
        schema, node, dict(types), dict(data), opset_imports=list(imports)
    )
    if not node.domain:
        if node.op_type == "Attention":
            _forget_keys(node, types, found)
        elif node.op_type == "ConvTranspose":
            _forget_output_padding(node, found)
    return found


def _attribute(node: onnx.NodeProto, name: str) -> object:
    """Return the value of an attribute; None where it is not written."""
    values = [attr for attr in node.attribute if attr.name == name]
    return onnx.helper.get_attribute_value(values[0]) if values else None


def _with_one_side(node: onnx.NodeProto) -> onnx.NodeProto:
    """Write ``onesided`` of STFT, which is 1 by default: the inference takes it for 0."""
    if _attribute(node, "onesided") is not None:
        return node
    written = onnx.NodeProto()
    written.CopyFrom(node)
    written.attribute.append(onnx.helper.make_attribute("onesided", 1))
    return written


def _forget_keys(
    node: onnx.NodeProto, types: Mapping[str, onnx.TypeProto], found: dict[str, onnx.TypeProto]
) -> None:
    """Forget sizes of Attention's outputs: an unknown size is taken for 0, a past for none.

    The last axis of the result is that of V, and the last one of the scores the number of keys.
    """

    def is_known(index: int, axis: int) -> bool:
        kind = types.get(node.input[index]) if index < len(node.input) else None
        if kind is None or not kind.tensor_type.HasField("shape"):
            return False
        dims = kind.tensor_type.shape.dim
        return bool(dims) and dims[axis].HasField("dim_value")

    past = len(node.input) > 4 and node.input[4]
    wrong = [] if is_known(2, -1) else [0]
    if past or not is_known(1, -2):
        wrong.append(3)
    for index in wrong:
        if index < len(node.output) and node.output[index] in found:
            dims = found[node.output[index]].tensor_type.shape.dim
            if dims:
                dims[-1].Clear()


def _forget_output_padding(node: onnx.NodeProto, found: dict[str, onnx.TypeProto]) -> None:
    """Forget sizes to which an output padding was added that ``auto_pad`` takes off again."""
    same = _attribute(node, "auto_pad") in (b"SAME_UPPER", b"SAME_LOWER")
    if same and _attribute(node, "output_padding") and node.output[0] in found:
        for dim in found[node.output[0]].tensor_type.shape.dim[2:]:
            dim.Clear()


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
