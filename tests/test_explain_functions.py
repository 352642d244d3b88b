"""explain, where the backend puts functions in the place of their calls."""

from __future__ import annotations

import json

import onnx
import pytest

from narrowpass.cli import main

MODEL = """
<ir_version: 8, opset_import: ["" : 17, "f": 1]>
g (float[N, 4] x) => (float[N, 4] y) { a = f.Twice(x)  y = f.Twice(a) }
<domain: "f", opset_import: ["": 17]>
Twice (x) => (y) { t = Add(x, x)  y = Relu(t) }
"""


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("backend", ["xnn-cpu", "reference"])
def test_decisions_about_nodes_of_functions(tmp_path, monkeypatch, capsys, backend, named):
    pytest.importorskip("narrowpass_fp16")
    pytest.importorskip("narrowpass_xnn_cpu")
    monkeypatch.chdir(tmp_path)
    proto = onnx.parser.parse_model(MODEL)
    if named:
        for node in proto.functions[0].node:
            node.name = node.op_type.lower()
    onnx.save(proto, "f.onnx")
    with pytest.raises(SystemExit) as stopped:
        main(["-q", "explain", "f.onnx", "-p", "fp16", "--backend", backend, "--json"])
    assert stopped.value.code == 0
    document = json.loads(capsys.readouterr().out)
    inner = [row for row in document["nodes"] if row["op_type"] in ("Add", "Relu")]
    assert len(inner) == (4 if backend == "xnn-cpu" else 2)
    for row in inner:
        [decision] = row["decisions"]
        assert decision["op_type"] == row["op_type"]
    # A call that was replaced by the nodes of its function is gone.
    gone = {row["op_type"] for row in document["removed"]}
    assert gone == ({"Twice"} if backend == "xnn-cpu" else set())
