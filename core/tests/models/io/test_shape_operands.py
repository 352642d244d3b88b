"""Which initializers must stay in the model file: the table against onnx, and the way to them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from narrowpass_ir.io import external_reference, serialize, shape_operands
from narrowpass_ir.io._shape_operands import READ_INPUTS

ONES = [1] * 32
AXES = list(range(32))


def names(model: ir.Model) -> set[str]:
    return {str(value.name) for value in shape_operands(model)}


def node_cases() -> Iterator[
    tuple[str, onnx.NodeProto, onnx.ModelProto, str, np.ndarray[Any, Any]]
]:
    """Each input of each operator that onnx has a test for, once for an opset and a pattern."""
    from onnx.backend.test.case.node import collect_testcases

    seen = set()
    for case in collect_testcases(None):
        if case.model is None or not case.data_sets:
            continue
        for info, array in zip(case.model.graph.input, case.data_sets[0][0], strict=False):
            if not isinstance(array, np.ndarray) or array.dtype.kind in "OSU":
                continue
            for node in case.model.graph.node:
                if node.domain == "" and info.name in node.input:
                    given = tuple(bool(name) for name in node.input)
                    key = (node.op_type, list(node.input).index(info.name), given, array.dtype)
                    if key not in seen:
                        seen.add(key)
                        yield case.name, node, case.model, info.name, array


@pytest.mark.filterwarnings("ignore")  # some of onnx's own cases overflow when they are created
def test_table_has_every_input_that_onnx_reads() -> None:
    read = set()
    for _, node, model, name, array in node_cases():
        changed = onnx.ModelProto()
        changed.CopyFrom(model)
        tensor = changed.graph.initializer.add()
        tensor.CopyFrom(numpy_helper.from_array(array, name))
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="data")
        kept = [info for info in changed.graph.input if info.name != name]
        del changed.graph.input[:]
        changed.graph.input.extend(kept)
        try:
            onnx.shape_inference.infer_shapes(changed, strict_mode=True)
        except onnx.shape_inference.InferenceError as error:
            if "external tensors" in str(error):
                read.add((node.op_type, list(node.input).index(name)))
    assert ("Reshape", 1) in read
    assert len(read) > 25
    assert {(op, index) for op, index in read if index not in READ_INPUTS.get(op, ())} == set()


def ints(name: str, values: object) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def one_node(
    op: str,
    operands: dict[int, np.ndarray[Any, Any]],
    rank: int = 32,
    opset: int = 21,
    outputs: int = 1,
    **attributes: Any,
) -> onnx.ModelProto:
    """A model of one node with x as input 0 where no operand takes its place."""
    inputs = ["" for _ in range(max(operands) + 1)]
    tensors = []
    for index, array in operands.items():
        inputs[index] = f"i{index}"
        tensors.append(numpy_helper.from_array(array, f"i{index}"))
    graph_inputs = []
    if 0 not in operands:
        inputs[0] = "x"
        shape = [1] * rank
        graph_inputs.append(helper.make_tensor_value_info("x", TensorProto.FLOAT, shape))
    results = [f"y{index}" for index in range(outputs)]
    node = helper.make_node(op, inputs, results, **attributes)
    infos = []
    for result in results:
        info = onnx.ValueInfoProto(name=result)
        kind = TensorProto.FLOAT
        if op == "SplitToSequence":
            info.type.sequence_type.elem_type.tensor_type.elem_type = kind
        else:
            info.type.tensor_type.elem_type = kind
        infos.append(info)
    graph = helper.make_graph([node], "g", graph_inputs, infos, tensors)
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", opset)])
    return onnx.shape_inference.infer_shapes(model, strict_mode=True)


def vector(values: object) -> np.ndarray[Any, Any]:
    return np.array(values, np.int64)


NODES = {
    "Reshape": one_node("Reshape", {1: vector(ONES)}, rank=1),
    "Expand": one_node("Expand", {1: vector(ONES)}, rank=1),
    "Tile": one_node("Tile", {1: vector(ONES)}),
    "ConstantOfShape": one_node("ConstantOfShape", {0: vector(ONES)}),
    "Slice": one_node(
        "Slice", {1: vector([0] * 32), 2: vector(ONES), 3: vector(AXES), 4: vector(ONES)}
    ),
    "Squeeze": one_node("Squeeze", {1: vector(AXES)}, rank=33),
    "Unsqueeze": one_node("Unsqueeze", {1: vector(AXES)}, rank=1),
    "Pad": one_node("Pad", {1: vector([0] * 64), 3: vector(AXES)}),
    "Split": one_node("Split", {1: vector([1] + [0] * 31)}, rank=1, outputs=32),
    "SplitToSequence": one_node("SplitToSequence", {1: vector([1] + [0] * 31)}, rank=1),
    "CenterCropPad": one_node("CenterCropPad", {1: vector(ONES)}, axes=AXES),
    "Resize sizes": one_node("Resize", {3: vector(ONES)}, mode="nearest"),
    "Resize scales": one_node("Resize", {2: np.ones(64, np.float32)}, rank=64, mode="nearest"),
    "Upsample": one_node(
        "Upsample", {1: np.ones(64, np.float32)}, rank=64, opset=9, mode="nearest"
    ),
    **{
        op: one_node(op, {1: vector(AXES)}, keepdims=0)
        for op in READ_INPUTS
        if op.startswith("Reduce")
    },
}


def split_off(model: ir.Model, folder: Path, keep: set[ir.Value]) -> Path:
    """Write a model whose initializers of 256 bytes and more, but `keep`, lie in a data file."""
    data = bytearray()

    def replace(scope: str, value: ir.Value) -> ir.TensorProtocol | None:
        tensor = value.const_value
        assert tensor is not None
        if value in keep or tensor.nbytes < 256:
            return None
        offset = len(data)
        data.extend(tensor.tobytes())
        return external_reference(tensor, "data.bin", offset, tensor.nbytes)

    proto = serialize(model, replace)
    (folder / "data.bin").write_bytes(data)
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


@pytest.mark.parametrize("op", NODES)
def test_full_check_needs_the_operands_inside(op: str, tmp_path: Path) -> None:
    model = ir.from_proto(NODES[op])
    assert max(t.const_value.nbytes for t in model.graph.initializers.values()) >= 256
    path = split_off(model, tmp_path, shape_operands(model))
    onnx.checker.check_model(str(path), full_check=True)
    path = split_off(model, tmp_path, set())
    with pytest.raises(Exception, match="external"):
        onnx.shape_inference.infer_shapes_path(str(path), strict_mode=True)


@pytest.mark.parametrize("op", NODES)
def test_onnxruntime_opens_them(op: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    model = ir.from_proto(NODES[op])
    path = split_off(model, tmp_path, shape_operands(model))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    assert session.get_outputs()


def test_weights_are_no_operands() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g(float[2,3] x) => (float[2,4] y)
        <float[3,4] w = {1,2,3,4,5,6,7,8,9,10,11,12}, float[4] b = {1,2,3,4}>
        { z = MatMul(x, w)  y = Add(z, b) }"""
    assert names(ir.from_onnx_text(text)) == set()


def test_through_operators_on_whole_numbers() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21]>
        g(float[n,3] x) => (float[a,b] y)
        <int64[2] table = {1,2}, int64[1] at = {0}, int64[1] k = {3}, int32[1] z = {0},
         float[1] weight = {2}, int64[2,1] flat = {1,2}>
        {
          s = Shape(x)  picked = Gather(s, at)  known = Gather(table, at)
          cast = Cast<to = 7>(z)  sum = Add(known, cast)  real = Cast<to = 7>(weight)
          row = Gather(flat, at)  rowv = Squeeze(row)
          shape = Concat<axis = 0>(picked, sum, k, real)
          y = Reshape(x, shape)
          unused = Reshape(x, rowv)
        }"""
    # A rank above 1 and a fraction are not carried; at decides what is picked.
    assert names(ir.from_onnx_text(text)) == {"table", "at", "k", "z"}


def test_out_of_functions_and_into_them() -> None:
    text = """<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
        g(float[4] x) => (float[a,b] y, float[c] z)
        <int64[2] outer = {2,2}, float[1] scale = {2}, int64[1] start = {0}>
        {
          y = mine.shaped(x, outer)
          z = mine.grown(x, scale)
          target = mine.created(start)
          w = Reshape(x, target)
        }
        <domain: "mine", opset_import: ["" : 21]>
        shaped (a, s) => (r) { r = mine.inner(a, s) }
        <domain: "mine", opset_import: ["" : 21]>
        inner (a, s) => (r) { r = Reshape(a, s) }
        <domain: "mine", opset_import: ["" : 21]>
        grown (a, s) => (r) { r = Upsample(a, s) }
        <domain: "mine", opset_import: ["" : 21]>
        created (a) => (r) { r = Identity(a) }"""
    assert names(ir.from_onnx_text(text)) == {"outer", "scale", "start"}


def test_into_and_out_of_subgraphs() -> None:
    inner = helper.make_tensor_value_info("t", TensorProto.INT64, [1])
    then = helper.make_graph(
        [helper.make_node("Identity", ["a"], ["t"])], "a", [], [inner], [ints("a", [4])]
    )
    other = helper.make_graph([helper.make_node("Identity", ["out"], ["t"])], "b", [], [inner])
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["more"], ["again"]),
            helper.make_node("Reshape", ["x", "carried"], ["r"]),
            helper.make_node("Reshape", ["x", "captured"], ["q"]),
            helper.make_node("Reshape", ["x", "own"], ["p"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("more", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.INT64, [1]),
        ],
        [
            helper.make_tensor_value_info("again", TensorProto.BOOL, []),
            helper.make_tensor_value_info("carried", TensorProto.INT64, [1]),
        ],
        [ints("own", [4])],
    )
    graph = helper.make_graph(
        [
            helper.make_node("If", ["cond"], ["s"], then_branch=then, else_branch=other),
            helper.make_node("Reshape", ["x", "s"], ["y"]),
            helper.make_node("Loop", ["", "cond", "first"], ["last"], body=body),
        ],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
            helper.make_tensor_value_info("cond", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [ints("out", [4]), ints("first", [4]), ints("captured", [4])],
    )
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    found = names(ir.from_proto(model))
    assert found == {"a", "out", "first", "captured", "own"}


def test_loops_of_values_end() -> None:
    # Two functions that call each other are invalid, but must not hang the search.
    text = """<ir_version: 10, opset_import: ["" : 21, "mine" : 1]>
        g(float[4] x) => (float[a] y) <int64[1] s = {4}> { t = mine.one(s)  y = Reshape(x, t) }
        <domain: "mine", opset_import: ["" : 21, "mine" : 1]>
        one (a) => (r) { r = mine.two(a) }
        <domain: "mine", opset_import: ["" : 21, "mine" : 1]>
        two (a) => (r) { r = mine.one(a) }"""
    assert names(ir.from_onnx_text(text)) == set()
