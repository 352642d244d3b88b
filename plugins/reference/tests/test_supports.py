from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from narrowpass.runtime.backend import Accept, Reject
from narrowpass_reference import ReferenceBackend


def _answer(op_type, domain="", version=None):
    return ReferenceBackend().supports(ir.Node(domain, op_type, [], version=version))


@pytest.mark.parametrize(
    ("domain", "op_type"),
    [
        ("", "Add"),
        ("", "Loop"),
        ("", "Scatter"),
        ("", "Mish"),
        ("", "Gelu"),
        ("ai.onnx.ml", "Scaler"),
        ("com.mine", "Anything"),
    ],
)
def test_accepted(domain, op_type):
    assert _answer(op_type, domain) == Accept()


@pytest.mark.parametrize(
    ("domain", "op_type"), [("", "MaxRoiPool"), ("", "NoSuchThing"), ("ai.onnx.ml", "ZipMap")]
)
def test_rejected_with_the_reason(domain, op_type):
    answer = _answer(op_type, domain)
    assert isinstance(answer, Reject)
    assert op_type in answer.reason


def test_what_is_rejected_of_the_standard_operators_is_what_onnx_lacks():
    version = onnx.defs.onnx_opset_version()
    rejected = {
        schema.name
        for schema in onnx.defs.get_all_schemas()
        if not schema.domain
        and not schema.deprecated
        and isinstance(_answer(schema.name, version=version), Reject)
    }
    assert rejected == {"MaxRoiPool", "Multinomial"}
