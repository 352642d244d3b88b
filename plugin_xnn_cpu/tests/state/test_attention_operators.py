"""Attention operators with caches, appended in place, beside onnxruntime with caches as feeds."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import compile_model

from narrowpass.errors import DataError
from narrowpass_planning.state.session import AppendingSession

onnxruntime = pytest.importorskip("onnxruntime")

HEADS, GROUPS, HEAD, ROOM = 4, 2, 16, 512
WIDTH = HEADS * HEAD


def _constants() -> list[onnx.TensorProto]:
    rng = np.random.default_rng(0)
    angles = np.arange(ROOM)[:, None] * 10000.0 ** (-np.arange(HEAD // 2) / (HEAD // 2))
    arrays = {
        "wq": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) * WIDTH**-0.5,
        "wk": rng.standard_normal((WIDTH, GROUPS * HEAD)).astype(np.float32) * WIDTH**-0.5,
        "wv": rng.standard_normal((WIDTH, GROUPS * HEAD)).astype(np.float32) * WIDTH**-0.5,
        "cos": np.cos(angles).astype(np.float32),
        "sin": np.sin(angles).astype(np.float32),
        "one": np.array([1], np.int64),
        "minus": np.array(-1, np.int64),
        "second": np.array(1, np.int64),
    }
    return [numpy_helper.from_array(array, name) for name, array in arrays.items()]


def layer(nodes: list[onnx.NodeProto], groups: int, fed: dict[str, tuple[int, list]], opset: int):
    """Return a layer: projections, the given nodes of attention, and its caches."""
    floats = TensorProto.FLOAT
    caches = [
        helper.make_tensor_value_info(f"past_{n}", floats, ["B", groups, "P", HEAD]) for n in "kv"
    ]
    inputs = [helper.make_tensor_value_info("x", floats, ["B", "S", WIDTH]), *caches]
    inputs += [helper.make_tensor_value_info(n, kind, dims) for n, (kind, dims) in fed.items()]
    outputs = [helper.make_tensor_value_info("y", floats, ["B", "S", WIDTH])]
    outputs += [
        helper.make_tensor_value_info(f"present_{n}", floats, ["B", groups, "T", HEAD])
        for n in "kv"
    ]
    projections = [
        helper.make_node("MatMul", ["x", f"w{name}"], [name], name=name) for name in "qkv"
    ]
    graph = helper.make_graph([*projections, *nodes], "g", inputs, outputs, _constants())
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


QKV_PAST = ["q", "k", "v", "past_k", "past_v"]
PRESENT = ["y", "present_k", "present_v"]
INT32, INT64 = TensorProto.INT32, TensorProto.INT64


def builder_form(**attributes: object) -> onnx.ModelProto:
    """Return the form of onnxruntime-genai's model builder: lengths come from the mask."""
    nodes = [
        helper.make_node("ReduceSum", ["attention_mask", "one"], ["sum"], keepdims=1),
        helper.make_node("Sub", ["sum", "one"], ["less"]),
        helper.make_node("Cast", ["less"], ["seqlens_k"], to=INT32),
        helper.make_node("Shape", ["attention_mask"], ["shape"]),
        helper.make_node("Gather", ["shape", "second"], ["total"], axis=0),
        helper.make_node("Cast", ["total"], ["total32"], to=INT32),
        helper.make_node(
            "GroupQueryAttention",
            [*QKV_PAST, "seqlens_k", "total32", "cos", "sin"],
            PRESENT,
            name="attention",
            domain="com.microsoft",
            num_heads=HEADS,
            kv_num_heads=GROUPS,
            do_rotary=1,
            **attributes,
        ),
    ]
    return layer(nodes, GROUPS, {"attention_mask": (INT64, ["B", "T"])}, 18)


def counted_form() -> onnx.ModelProto:
    """Return GroupQueryAttention whose lengths are inputs."""
    node = helper.make_node(
        "GroupQueryAttention",
        [*QKV_PAST, "seqlens_k", "total"],
        PRESENT,
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=GROUPS,
    )
    return layer([node], GROUPS, {"seqlens_k": (INT32, ["B"]), "total": (INT32, [])}, 18)


def multi_head_form(*, masked: bool) -> onnx.ModelProto:
    """Return MultiHeadAttention, whose keys have as many heads as its queries."""
    node = helper.make_node(
        "MultiHeadAttention",
        ["q", "q", "q", "", "attention_mask" if masked else "", "", "past_k", "past_v"],
        PRESENT,
        domain="com.microsoft",
        num_heads=HEADS,
        unidirectional=1,
    )
    fed = {"attention_mask": (INT32, ["B", "T"])} if masked else {}
    return layer([node], HEADS, fed, 18)


def onnx_form(**attributes: object) -> onnx.ModelProto:
    """Return ONNX's Attention with past keys and values."""
    node = helper.make_node(
        "Attention",
        ["q", "k", "v", "", "past_k", "past_v"],
        PRESENT,
        q_num_heads=HEADS,
        kv_num_heads=GROUPS,
        is_causal=1,
        **attributes,
    )
    return layer([node], GROUPS, {}, 23)


FORMS = {
    "builder": builder_form,
    "builder, sliding": lambda: builder_form(local_window_size=5),
    "builder, capped": lambda: builder_form(softcap=3.0),
    "counted": counted_form,
    "multi-head": lambda: multi_head_form(masked=False),
    "multi-head, masked": lambda: multi_head_form(masked=True),
    "attention": onnx_form,
    "attention, capped": lambda: onnx_form(softcap=2.0, scale=0.3),
}


def feeds_of(form: str, rows: int, past: int, seed: int) -> dict[str, np.ndarray]:
    """Return feeds without caches."""
    x = np.random.default_rng(seed).standard_normal((1, rows, WIDTH)).astype(np.float32)
    total = past + rows
    if "builder" in form:
        return {"x": x, "attention_mask": np.ones((1, total), np.int64)}
    if form == "counted":
        count = {"seqlens_k": np.array([total - 1], np.int32), "total": np.array(total, np.int32)}
        return {"x": x, **count}
    if "masked" in form:
        mask = np.ones((1, total), np.int32)
        mask[:, 2] = 0
        return {"x": x, "attention_mask": mask}
    return {"x": x}


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_prompt_and_tokens(form, threads, monkeypatch):
    """A prompt and 20 tokens; 64 float32 terms are accumulated in another order."""
    model = FORMS[form]()
    oracle = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    groups = model.graph.input[1].type.tensor_type.shape.dim[1].dim_value
    caches = [np.zeros((1, groups, 0, HEAD), np.float32)] * 2
    with compile_model(model, threads=threads) as program, program.session() as session:
        assert isinstance(session, AppendingSession), session.reason
        assert not session.reason
        for step, rows in enumerate((9, *[1] * 20, *([] if "builder" in form else [3, 1]))):
            feeds = feeds_of(form, rows, session.length, step)
            pasts = dict(zip(("past_k", "past_v"), caches, strict=True))
            wanted, *caches = oracle.run(None, {**feeds, **pasts})
            if rows == 1 and step == 5:  # what follows is planned: a token runs the tape again
                monkeypatch.setattr(session, "_run_anew", None)
            elif rows != 1:
                monkeypatch.undo()
            found = session.run(feeds)["y"]
            np.testing.assert_allclose(found, wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())
        for name, wanted in zip(("past_k", "past_v"), caches, strict=True):
            np.testing.assert_allclose(session.values()[name], wanted, rtol=0, atol=1e-5)


def test_what_places_rows_otherwise_is_refused():
    """GroupQueryAttention would place rows by the mask: the error says what to do."""
    with compile_model(builder_form()) as program, program.session() as session:
        feeds = feeds_of("builder", 3, 0, 0)
        feeds["attention_mask"][0, 0] = 0
        with pytest.raises(DataError, match=r"'attention_mask' has zeros.*sessions of their own"):
            session.run(feeds)
        feeds["attention_mask"] = np.ones((1, 4), np.int64)
        with pytest.raises(DataError, match="4 columns"):
            session.run(feeds)
        assert session.length == 0
    with compile_model(counted_form()) as program, program.session() as session:
        feeds = feeds_of("counted", 3, 0, 0)
        feeds["seqlens_k"][:] = 1
        with pytest.raises(DataError, match=r"'seqlens_k' is \[1\]"):
            session.run(feeds)
