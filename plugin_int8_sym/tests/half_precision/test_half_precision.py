"""Models whose weights, or all of whose floats, have 16 bits become int8 as those in float32 do."""

from __future__ import annotations

from collections import Counter

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from int8_kit import Array, floats, verdicts
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from onnxruntime_kit import run_onnxruntime

import narrowpass

FLOAT = TensorProto.FLOAT
HALVES = {
    TensorProto.FLOAT16: np.dtype(np.float16),
    TensorProto.BFLOAT16: np.dtype(ml_dtypes.bfloat16),
}
BOTH = pytest.mark.parametrize("dtype", HALVES, ids=["float16", "bfloat16"])
FORMS = pytest.mark.parametrize("form", ["cast", "all"])
MODES = ["static", "dynamic", "weight-only"]


class ModelBuilder:
    """Builds a model in float32, behind Casts of weights (``cast``), or throughout narrow."""

    def __init__(self, form: str, dtype: int, opset: int = 22) -> None:
        self.form, self.dtype, self.opset = form, dtype, opset
        self.io = dtype if form == "all" else FLOAT
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def node(self, kind: str, inputs: list[str], output: str, **attributes) -> str:
        self.nodes.append(helper.make_node(kind, inputs, [output], output, **attributes))
        return output

    def constant(self, name: str, array: Array) -> str:
        narrow = array.astype(HALVES[self.dtype])
        if self.form == "float32":
            narrow = narrow.astype(np.float32)
        kind = FLOAT if self.form == "float32" else self.dtype
        tensor = helper.make_tensor(name, kind, array.shape, narrow.tobytes(), raw=True)
        self.constants.append(tensor)
        return self.node("Cast", [name], f"{name}_f", to=FLOAT) if self.form == "cast" else name

    def model(self, inputs: dict[str, tuple], outputs: dict[str, tuple]) -> onnx.ModelProto:
        info = helper.make_tensor_value_info
        ids = {"ids": TensorProto.INT64}
        graph = helper.make_graph(
            self.nodes,
            "g",
            [info(name, ids.get(name, self.io), dims) for name, dims in inputs.items()],
            [info(name, self.io, dims) for name, dims in outputs.items()],
            self.constants,
        )
        opsets = [helper.make_opsetid("", self.opset)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def text_model(form: str, dtype: int, opset: int = 22) -> onnx.ModelProto:
    """Embeddings, a MatMul with a bias, a Gemm whose weight is turned."""
    builder = ModelBuilder(form, dtype, opset)
    rng = np.random.default_rng(3)
    table = builder.constant("table", rng.standard_normal((512, 64)))
    first = builder.constant("first", rng.standard_normal((64, 32)) / 8)
    bias = builder.constant("bias", rng.standard_normal(32) / 8)
    second = builder.constant("second", rng.standard_normal((16, 32)) / 6)
    builder.node("Gather", [table, "ids"], "rows")
    builder.node("MatMul", ["rows", first], "dense")
    builder.node("Add", ["dense", bias], "sum")
    builder.node("Relu", ["sum"], "relu")
    builder.node("Gemm", ["relu", second], "y", transB=1)
    return builder.model({"ids": ("N",)}, {"y": ("N", 16)})


def image_model(form: str, dtype: int, opset: int = 22) -> onnx.ModelProto:
    builder = ModelBuilder(form, dtype, opset)
    rng = np.random.default_rng(4)
    first = builder.constant("first", rng.standard_normal((8, 3, 3, 3)) / 5)
    bias = builder.constant("bias", rng.standard_normal(8) / 8)
    up = builder.constant("up", rng.standard_normal((8, 8, 2, 2)) / 5)
    deep = builder.constant("deep", rng.standard_normal((8, 1, 3, 3)) / 3)
    head = builder.constant("head", rng.standard_normal((8, 10)) / 3)
    builder.node("Conv", ["x", first, bias], "conv", pads=[1] * 4)
    builder.node("Relu", ["conv"], "relu")
    builder.node("ConvTranspose", ["relu", up], "large", strides=[2, 2])
    builder.node("Conv", ["large", deep], "depthwise", group=8, pads=[1] * 4)
    builder.node("Add", ["depthwise", "large"], "sum")
    builder.node("GlobalAveragePool", ["sum"], "mean")
    builder.node("Flatten", ["mean"], "flat")
    builder.node("MatMul", ["flat", head], "y")
    return builder.model({"x": ("N", 3, 8, 8)}, {"y": ("N", 10)})


MODELS = {"text": text_model, "image": image_model}


def data(model: onnx.ModelProto, count: int = 4) -> list[dict[str, Array]]:
    rng = np.random.default_rng(5)
    (given,) = model.graph.input
    if given.name == "ids":
        return [{"ids": rng.integers(0, 512, 24)} for _ in range(count)]
    kind = helper.tensor_dtype_to_np_dtype(given.type.tensor_type.elem_type)
    return [{"x": rng.standard_normal((2, 3, 8, 8)).astype(kind)} for _ in range(count)]


def built(model: onnx.ModelProto, text: str, samples=None) -> narrowpass.Bundle:
    return narrowpass.build(ir.from_proto(model), text, target="reference", calibration=samples)


def result(bundle: narrowpass.Bundle) -> onnx.ModelProto:
    rewritten = ir.to_proto(bundle.methods["main"])
    onnx.checker.check_model(rewritten, full_check=True)
    return rewritten


def quantized(model: onnx.ModelProto, mode: str) -> onnx.ModelProto:
    text = f"int8-sym{{mode={mode}}}"
    samples = data(model) if mode == "static" else None
    first = result(built(model, text, samples))
    again = result(built(first, text, samples))
    assert again.SerializeToString() == first.SerializeToString(), "a second run changes the model"
    return first


def in_bytes(model: onnx.ModelProto) -> set[str]:
    """Name the weights that are stored in bytes, as they were named in float."""
    names = [t.name for t in model.graph.initializer if t.data_type == TensorProto.INT8 and t.dims]
    return {name.removesuffix(".int8").removesuffix("_f") for name in names}


def signature(model: onnx.ModelProto) -> list[tuple[str, int]]:
    values = (*model.graph.input, *model.graph.output)
    return [(value.name, value.type.tensor_type.elem_type) for value in values]


def sqnr(right: Array, got: Array) -> float:
    right, got = np.asarray(right, np.float64), np.asarray(got, np.float64)
    return float(10 * np.log10(np.sum(right**2) / max(np.sum((got - right) ** 2), 1e-30)))


def evaluated(model: onnx.ModelProto, feeds: dict[str, Array]) -> Array:
    return ReferenceEvaluator(model).run(None, feeds)[0]


@BOTH
@FORMS
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", MODELS)
def test_halves_become_int8_like_floats(kind, mode, form, dtype):
    plain, model = MODELS[kind]("float32", dtype), MODELS[kind](form, dtype)
    onnx.checker.check_model(model, full_check=True)
    wanted, rewritten = quantized(plain, mode), quantized(model, mode)
    assert in_bytes(rewritten) == in_bytes(wanted) != set()
    assert signature(rewritten) == signature(model)
    for name in in_bytes(wanted) & {"first", "up", "deep", "head", "second"}:
        scales = {
            tensor.name.removesuffix(".scale").removesuffix("_f"): onnx.numpy_helper.to_array(
                tensor
            )
            for tensor in rewritten.graph.initializer
            if tensor.name.endswith(".scale")
        }
        assert scales[name].dtype == np.float32
    (feeds,) = data(plain, 1)
    narrow = {
        k: v if k == "ids" or form == "cast" else v.astype(HALVES[dtype]) for k, v in feeds.items()
    }
    right, got = evaluated(plain, feeds), evaluated(rewritten, narrow)
    # Where inputs and the rest are rounded to bfloat16, it is about as much noise again.
    allowed = 3.0 if form == "cast" or dtype == TensorProto.FLOAT16 else 8.0
    assert sqnr(right, got) > sqnr(right, evaluated(wanted, feeds)) - allowed


@BOTH
@pytest.mark.parametrize("mode", MODES)
def test_onnxruntime_runs_what_comes_of_casts(mode, dtype):
    plain, model = image_model("float32", dtype), image_model("cast", dtype)
    (feeds,) = data(plain, 1)
    found = run_onnxruntime(quantized(model, mode), feeds, optimized=True)
    assert sqnr(evaluated(plain, feeds), found[0]) > 35


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("mode", MODES)
def test_float16_before_int8_quantizes_what_int8_alone_does(kind, mode):
    pytest.importorskip("narrowpass_fp16")
    model = MODELS[kind]("float32", TensorProto.FLOAT16)
    samples = data(model)
    alone = result(built(model, f"int8-sym{{mode={mode}}}", samples))
    rewritten = result(built(model, f"fp16,int8-sym{{mode={mode}}}", samples))
    assert in_bytes(rewritten) == in_bytes(alone) != set()
    assert signature(rewritten) == signature(model)
    right = evaluated(model, samples[0])
    wanted = sqnr(right, evaluated(alone, samples[0]))
    assert sqnr(right, evaluated(rewritten, samples[0])) > wanted - 1


@BOTH
@FORMS
def test_what_is_left_float_keeps_its_16_bits(form, dtype):
    model = text_model(form, dtype)
    rewritten = result(built(model, "int8-sym{mode=weight-only,red=[dense,rows]}"))
    kinds = {tensor.name: tensor.data_type for tensor in rewritten.graph.initializer}
    assert kinds["first"] == kinds["table"] == kinds["bias"] == dtype
    assert "second" not in kinds
    by_name = {node.name: node for node in rewritten.graph.node}
    if form == "all":
        assert list(by_name["dense"].input) == ["rows", "first"]
        assert "Cast" not in {node.op_type for node in rewritten.graph.node[:3]}


@BOTH
@FORMS
@pytest.mark.parametrize("mode", MODES)
def test_where_all_is_left_the_model_is_as_it_was(form, dtype, mode):
    model = text_model(form, dtype)
    samples = data(model) if mode == "static" else None
    bundle = built(model, f"int8-sym{{mode={mode},red=[*]}}", samples)
    assert result(bundle).SerializeToString() == result(built(model, "")).SerializeToString()


@pytest.mark.parametrize("mode", MODES)
def test_no_note_of_the_way_is_left_in_the_model(mode):
    rewritten = quantized(image_model("all", TensorProto.FLOAT16), mode)
    notes = {prop.key for node in rewritten.graph.node for prop in node.metadata_props}
    assert notes <= {"narrowpass.activations"}


def test_operator_sets_without_float16_scales_have_casts():
    model = text_model("all", TensorProto.FLOAT16, opset=13)
    rewritten = quantized(model, "dynamic")
    assert in_bytes(rewritten) == {"table", "first", "second"}
    assert signature(rewritten) == signature(model)
    (feeds,) = data(model, 1)
    right = evaluated(text_model("float32", TensorProto.FLOAT16), feeds)
    assert sqnr(right, run_onnxruntime(rewritten, feeds, optimized=True)[0]) > 35


@BOTH
def test_a_tied_embedding_is_stored_once(dtype):
    builder = ModelBuilder("all", dtype)
    table = builder.constant("table", np.random.default_rng(6).standard_normal((512, 64)) / 8)
    builder.node("Gather", [table, "ids"], "rows")
    builder.node("Transpose", [table], "turned", perm=[1, 0])
    builder.node("MatMul", ["rows", "turned"], "y")
    rewritten = quantized(builder.model({"ids": ("N",)}, {"y": ("N", 512)}), "weight-only")
    sizes = Counter(t.data_type for t in rewritten.graph.initializer if np.prod(t.dims) == 512 * 64)
    assert sizes == {TensorProto.INT8: 1}


def test_one_half_behind_two_casts_is_stored_once():
    builder = ModelBuilder("cast", TensorProto.FLOAT16)
    weight = builder.constant("w", floats(64, 64))
    builder.node("Cast", ["w"], "again", to=FLOAT)
    builder.node("MatMul", ["x", weight], "a")
    builder.node("MatMul", ["a", "again"], "y")
    rewritten = quantized(builder.model({"x": ("N", 64)}, {"y": ("N", 64)}), "dynamic")
    assert Counter(t.data_type for t in rewritten.graph.initializer) == {
        TensorProto.INT8: 1,
        FLOAT: 1,
    }


@BOTH
def test_operators_of_other_domains_get_what_they_had(dtype):
    builder = ModelBuilder("all", dtype)
    builder.node("MatMul", ["x", builder.constant("w", floats(64, 64))], "a")
    builder.node("Strange", ["a"], "b", domain="elsewhere")
    builder.node("MatMul", ["b", builder.constant("w2", floats(64, 64))], "y")
    model = builder.model({"x": ("N", 64)}, {"y": ("N", 64)})
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    model.graph.value_info.append(helper.make_tensor_value_info("b", dtype, ("N", 64)))
    rewritten = ir.to_proto(built(model, "int8-sym").methods["main"])
    producers = {name: node for node in rewritten.graph.node for name in node.output}
    (strange,) = (node for node in rewritten.graph.node if node.domain)
    border = producers[strange.input[0]]
    assert border.op_type == "Cast"
    assert helper.get_node_attr_value(border, "to") == dtype
    assert in_bytes(rewritten) == {"w", "w2"}


@FORMS
@pytest.mark.parametrize("mode", ["dynamic", "weight-only"])
def test_weights_in_branches_become_int8(form, mode):
    builder = ModelBuilder(form, TensorProto.FLOAT16)
    weight = builder.constant("w", floats(64, 64))
    branches = []
    for name in ("then", "otherwise"):
        node = helper.make_node("MatMul", ["x", weight], [f"{name}_y"], name)
        info = helper.make_tensor_value_info(f"{name}_y", builder.io, ("N", 64))
        branches.append(helper.make_graph([node], name, [], [info]))
    builder.nodes.append(
        helper.make_node("If", ["c"], ["y"], "if", then_branch=branches[0], else_branch=branches[1])
    )
    model = builder.model({"x": ("N", 64)}, {"y": ("N", 64)})
    model.graph.input.append(helper.make_tensor_value_info("c", TensorProto.BOOL, ()))
    rewritten = quantized(model, mode)
    assert in_bytes(rewritten) == {"w"}
    kind = np.float16 if form == "all" else np.float32
    feeds = {"x": floats(4, 64).astype(kind), "c": np.array(True)}
    assert sqnr(evaluated(model, feeds), evaluated(rewritten, feeds)) > 35


def test_reports_name_weights_as_the_model_does():
    bundle = built(text_model("all", TensorProto.FLOAT16), "int8-sym{mode=dynamic}")
    decisions = verdicts(bundle)
    assert {name: item["decision"] for name, item in decisions.items()} == {
        "dense": "int8",
        "y": "int8",
        "rows": "int8",
    }


def test_a_tolerance_is_judged_in_half_models():
    model = image_model("all", TensorProto.FLOAT16)
    rewritten = result(built(model, "int8-sym{tolerance=sqnr:60}", data(model)))
    free = result(built(model, "int8-sym", data(model)))
    right = [evaluated(model, feeds) for feeds in data(model)]
    kept, lost = (
        [sqnr(r, evaluated(each, f)) for r, f in zip(right, data(model), strict=True)]
        for each in (rewritten, free)
    )
    assert len(in_bytes(rewritten)) < len(in_bytes(free))
    assert min(kept) > min(lost)


@pytest.mark.parametrize("mode", ["dynamic", "weight-only"])
def test_outputs_of_unknown_sizes_stay_so(mode):
    """What inference finds while values are upcast is not written to the signature."""
    builder = ModelBuilder("all", TensorProto.FLOAT16)
    builder.node("MatMul", ["x", builder.constant("w", floats(16, 8))], "y")
    model = builder.model({"x": (3, 16)}, {"y": (None, None)})
    bundle = narrowpass.build(ir.from_proto(model), f"int8-sym{{mode={mode}}}")
    method = bundle.methods["main"]
    assert any(node.op_type == "DequantizeLinear" for node in method.graph) or mode == "dynamic"
    shape = method.graph.outputs[0].shape
    assert [dim.value for dim in shape] == [None, None]
