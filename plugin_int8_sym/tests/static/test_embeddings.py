"""Embeddings in int8: a scale for each row, and the rows that are gathered."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from int8_kit import floats
from static_kit import graph, quantized, session

TEXT = """g (int64[2,5] ids, float[600,32] table, float[32,32] w) => (float[2,5,32] y) {
    rows = Gather (table, ids)
    y = MatMul (rows, w)
}"""


def example(text=TEXT):
    table = floats(600, 32) * np.float32(10.0) ** floats(600, 1)
    table[7] = 0
    ids = np.array([[0, 7, -1, 599, 3], [5, 5, 2, 1, -600]])
    return graph(text, {"table": table, "w": floats(32, 32)}), [{"ids": ids}], table


def test_rows_have_scales_of_their_own():
    text = TEXT.replace("float[2,5,32] y)", "float[2,5,32] y, float[2,5,32] rows)")
    model, data, table = example(text)
    result = quantized(model, data)
    assert result.verdicts["rows"] == "int8"
    assert "table" not in result.model.graph.initializers
    assert result.constant("table.int8").dtype == np.int8
    assert result.constant("table.scale").shape == (600, 1)
    (got,) = result.outputs()
    rows = table[data[0]["ids"]]
    step = np.abs(rows).max(axis=-1, keepdims=True) / 127
    assert (np.abs(got["rows"] - rows) <= step * 0.5001).all()
    for optimized in (False, True):
        y, others = session(result.proto, optimized=optimized).run(None, data[0])
        np.testing.assert_array_equal(others, got["rows"])
        assert np.abs(y - got["y"]).max() <= 1e-4 * np.abs(got["y"]).max()


def test_a_node_that_is_red_gathers_floats():
    model, data, _ = example()
    result = quantized(model, data, red=("op:Gather",))
    assert result.verdicts["rows"] == "float"
    assert "table" in result.model.graph.initializers


def test_a_table_that_others_read_stays():
    text = TEXT.replace("float[2,5,32] y)", "float[2,5,32] y, float[600,32] z)")
    model, data, _ = example(text.replace("y = ", "z = Neg (table) y = "))
    result = quantized(model, data)
    assert result.verdicts["rows"] == "float"
    assert "table" in result.model.graph.initializers


def test_a_small_table_stays():
    text = TEXT.replace("600", "300")
    model = graph(text, {"table": floats(300, 32), "w": floats(32, 32)})
    result = quantized(model, [{"ids": np.arange(10).reshape(2, 5)}])
    assert result.verdicts["rows"] == "float"
    assert "table" in result.model.graph.initializers


TIED = """g (int64[2,5] ids, float[600,32] table) => (float[2,5,600] y) {
    rows = Gather (table, ids)
    r = Relu (rows)
    turned = Transpose <perm = [1,0]> (table)
    y = MatMul (r, turned)
}"""


@pytest.mark.parametrize("mode", ["static", "dynamic", "weight-only"])
def test_a_tied_embedding_is_stored_once(mode):
    _, data, table = example()
    result = quantized(graph(TIED, {"table": table}), data, mode=mode)
    assert result.verdicts["rows"] == result.verdicts["y"] == "int8"
    large = {n: v for n, v in result.model.graph.initializers.items() if v.const_value.size > 600}
    assert {name: value.dtype for name, value in large.items()} == {"table.int8": ir.DataType.INT8}
    np.testing.assert_array_equal(
        result.constant("table.scale"), result.constant("table.scale.column")[:, 0]
    )
    assert result.count["Transpose"] == result.count["DequantizeLinear"] - (mode == "static") == 1
    (got,) = result.outputs()
    np.testing.assert_allclose(
        session(result.proto, optimized=False).run(None, data[0])[0],
        got["y"],
        rtol=0,
        atol=1e-5 * np.abs(got["y"]).max(),
    )
    # Rounding to 127 steps leaves about 43 dB of numbers that are distributed normally.
    assert result.sqnr() > 35


def test_a_tied_embedding_has_the_per_tensor_scale_of_the_matmul():
    _, data, table = example()
    model = graph(TIED, {"table": table})
    result = quantized(model, data, mode="weight-only", weights="per-tensor")
    assert result.constant("table.scale").shape == ()
    assert result.count["Gather"] == 1
    (got,) = result.outputs()
    whole, scale = result.constant("table.int8"), result.constant("table.scale")
    wide = whole.astype(np.float32) * scale
    right = np.maximum(wide[data[0]["ids"]], 0) @ wide.T
    np.testing.assert_allclose(got["y"], right, rtol=0, atol=1e-5 * np.abs(right).max())


def test_an_embedding_that_is_a_weight_without_transpose_has_column_scales():
    text = """g (int64[2,5] ids, float[600,32] table, float[2,600] x) =>
        (float[2,5,32] rows, float[2,32] y) {
        rows = Gather (table, ids)
        y = MatMul (x, table)
    }"""
    _, (feeds,), table = example()
    data = [feeds | {"x": floats(2, 600)}]
    result = quantized(graph(text, {"table": table}), data, mode="weight-only")
    assert result.constant("table.scale").shape == (32,)
    rows = table[feeds["ids"]]
    step = np.abs(table).max(axis=0) / 127
    assert (np.abs(result.outputs()[0]["rows"] - rows) <= step * 0.5001).all()


@pytest.mark.parametrize("red", ["op:Gather", "op:MatMul"])
def test_a_tied_table_stays_where_one_of_its_readers_is_red(red):
    _, data, table = example()
    result = quantized(graph(TIED, {"table": table}), data, mode="dynamic", red=(red,))
    assert "rows" not in result.verdicts
    assert "table" in result.model.graph.initializers


@pytest.mark.parametrize("mode", ["dynamic", "weight-only"])
def test_tables_are_in_bytes_without_data_too(mode):
    model, data, _ = example()
    result = quantized(model, data, mode=mode)
    assert result.verdicts["rows"] == "int8"
    assert {
        n for n, v in result.model.graph.initializers.items() if v.dtype == ir.DataType.INT8
    } == {
        "table.int8",
        "w.int8",
    }
    assert result.sqnr() > 35


def test_a_transpose_that_others_read_stays_beside():
    text = TIED.replace("float[2,5,600] y)", "float[2,5,600] y, float[32,600] z)")
    text = text.replace("y = ", "z = Neg (turned) y = ")
    _, data, table = example()
    result = quantized(graph(text, {"table": table}), data, mode="weight-only")
    assert result.count["Transpose"] == 2
    assert "rows" not in result.verdicts
    np.testing.assert_array_equal(result.outputs()[0]["z"], -table.T)
