"""Models of one operator of com.microsoft, run natively and by onnxruntime's CPU kernels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnxruntime_kit import run_onnxruntime
from xnn_kit import Array, close, compile_model

MICROSOFT = "com.microsoft"


def model_of(
    op_type: str,
    inputs: Mapping[str, Array | None],
    outputs: Sequence[str],
    *,
    constants: Sequence[str] = (),
    dims: Mapping[str, Sequence[int | str]] | None = None,
    domain: str = MICROSOFT,
    **attributes: Any,
) -> onnx.ModelProto:
    """Build a model of one node.

    Args:
        op_type: its operator.
        inputs: by name, in order; None for those left out.
        outputs: names, empty for those left out.
        constants: names of inputs that are initializers.
        dims: what is declared of inputs, where that is not the shape of the array.
        domain: of the operator.
        **attributes: of the node.
    """
    infos, initializers = [], []
    for name, array in inputs.items():
        if array is None:
            continue
        if name in constants:
            initializers.append(numpy_helper.from_array(array, name))
            continue
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        shape = (dims or {}).get(name, array.shape)
        infos.append(helper.make_tensor_value_info(name, kind, shape))
    names = ["" if array is None else name for name, array in inputs.items()]
    while names and not names[-1]:
        names.pop()
    node = helper.make_node(op_type, names, outputs, name="node", domain=domain, **attributes)
    results = [onnx.ValueInfoProto(name=name) for name in outputs if name]
    graph = helper.make_graph([node], "g", infos, results, initializers)
    imports = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=8)


def onnxruntime_results(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    """Run a model with onnxruntime, on one thread and as it is."""
    return run_onnxruntime(model, feeds)


def compare(
    op_type: str,
    inputs: Mapping[str, Array | None],
    outputs: Sequence[str] = ("y",),
    *,
    tolerance: float = 1e-5,
    rows_of: Mapping[str, Array] | None = None,
    native: bool = True,
    **given: Any,
) -> None:
    """Assert that the native backend agrees with onnxruntime, with no node on the evaluator.

    `tolerance` is relative to an output's largest element: 1e-5 for fp32 accumulation in
    another order. `rows_of` has, for an output [batch, heads, rows, ..], the number of rows of
    each batch that are specified.
    """
    model = model_of(op_type, inputs, outputs, **given)
    constants = given.get("constants", ())
    feeds = {k: v for k, v in inputs.items() if v is not None and k not in constants}
    expected = onnxruntime_results(model, feeds)
    with compile_model(model) as program:
        reasons = [plan.reason for plan in program.explain() if plan.reason]
        assert not (native and reasons), reasons
        for _ in range(2):  # the second run has its shapes already
            got = program.run(feeds)
            for name, value in zip((name for name in outputs if name), expected, strict=True):
                counts = (rows_of or {}).get(name)
                if counts is None:
                    close(got[name], value, tolerance)
                    continue
                assert got[name].shape == value.shape
                for batch, count in enumerate(counts):
                    part = np.s_[batch, :, :count]
                    close(got[name][part], value[part], tolerance)


def reason_of(op_type: str, inputs: Mapping[str, Array | None], **given: Any) -> str:
    """Compile a node that is refused; return the reason from the error."""
    from narrowpass.errors import BackendError

    with pytest.raises(BackendError) as caught:
        compile_model(model_of(op_type, inputs, given.pop("outputs", ["y"]), **given))
    return str(caught.value)
