"""How the verifier names types."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from narrowpass_ir.errors import VerificationError
from narrowpass_ir.verify import verify
from narrowpass_ir.verify._operators import tensor_text, type_text

FLOAT = ir.TensorType(ir.DataType.FLOAT)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (None, None),
        (FLOAT, "tensor(float)"),
        (ir.TensorType(ir.DataType.UNDEFINED), None),
        (ir.SparseTensorType(ir.DataType.INT8), "sparse_tensor(int8)"),
        (ir.SparseTensorType(ir.DataType.UNDEFINED), None),
        (ir.SequenceType(FLOAT), "seq(tensor(float))"),
        (ir.OptionalType(ir.SequenceType(FLOAT)), "optional(seq(tensor(float)))"),
        (ir.SequenceType(ir.TensorType(ir.DataType.UNDEFINED)), None),
    ],
)
def test_types(kind, text):
    assert type_text(kind) == text


@pytest.mark.parametrize(
    ("number", "text"), [(-1, None), (0, None), (1, "tensor(float)"), (999, None)]
)
def test_numbers_of_types(number, text):
    assert tensor_text(number) == text


def test_of_many_types_eight_are_named():
    """In order, and how many others there are, by the schema of Abs."""
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 21]>
        g (bool[2] x) => (bool[2] y) { y = Abs(x) }"""
    )
    # bfloat16, 3 of floats, 4 of integers and 4 of unsigned ones.
    with pytest.raises(VerificationError) as caught:
        verify(model)
    types = ["bfloat16", "double", "float", "float16", "int16", "int32", "int64", "int8"]
    listed = ", ".join(f"tensor({name})" for name in types)
    assert f"may be only {listed} and 4 others" in str(caught.value)
