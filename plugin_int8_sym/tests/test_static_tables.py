"""Tables of embeddings in bytes: a scale for each row, and the rows that were asked for."""

from __future__ import annotations

import numpy as np
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
    made = quantized(model, data)
    assert made.verdicts["rows"] == "int8"
    assert "table" not in made.model.graph.initializers
    assert made.constant("table.int8").dtype == np.int8
    assert made.constant("table.scale").shape == (600, 1)
    (got,) = made.outputs()
    rows = table[data[0]["ids"]]
    step = np.abs(rows).max(axis=-1, keepdims=True) / 127
    assert (np.abs(got["rows"] - rows) <= step * 0.5001).all()
    for optimized in (False, True):
        y, others = session(made.proto, optimized=optimized).run(None, data[0])
        np.testing.assert_array_equal(others, got["rows"])
        assert np.abs(y - got["y"]).max() <= 1e-4 * np.abs(got["y"]).max()


def test_a_node_that_is_red_gathers_floats():
    model, data, _ = example()
    made = quantized(model, data, red=("op:Gather",))
    assert made.verdicts["rows"] == "float"
    assert "table" in made.model.graph.initializers


def test_a_table_that_others_read_stays():
    text = TEXT.replace("float[2,5,32] y)", "float[2,5,32] y, float[600,32] z)")
    model, data, _ = example(text.replace("y = ", "z = Neg (table) y = "))
    made = quantized(model, data)
    assert made.verdicts["rows"] == "float"
    assert "table" in made.model.graph.initializers


def test_a_small_table_stays():
    text = TEXT.replace("600", "300")
    model = graph(text, {"table": floats(300, 32), "w": floats(32, 32)})
    made = quantized(model, [{"ids": np.arange(10).reshape(2, 5)}])
    assert made.verdicts["rows"] == "float"
    assert "table" in made.model.graph.initializers
