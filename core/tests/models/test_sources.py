"""Whatever a model is given as becomes the same model of the IR."""

from __future__ import annotations

import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from narrowpass_ir.errors import ModelError, UsageError
from narrowpass_ir.sources import open_model

PROTO = onnx.parser.parse_model("""
    <ir_version: 10, opset_import: ["": 21]>
    g (float[n, 2] x) => (float[n, 2] y) <float[2] w = {1.0, 2.0}> { y = Mul(x, w) }
""")


@pytest.fixture
def torch():
    pytest.importorskip("onnxscript")
    return pytest.importorskip("torch")


@pytest.fixture
def module(torch):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh()).eval()


def run(model, x):
    proto = ir.to_proto(model)
    return ReferenceEvaluator(proto).run(None, {proto.graph.input[0].name: x})[0]


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_bytes(kind):
    model = open_model(kind(PROTO.SerializeToString()))
    np.testing.assert_array_equal(run(model, np.ones((1, 2), np.float32)), [[1, 2]])


def test_paths_and_objects(tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(PROTO, path)
    for source in (path, str(path), PROTO):
        np.testing.assert_array_equal(
            run(open_model(source), np.ones((1, 2), np.float32)), [[1, 2]]
        )
    model = ir.from_proto(PROTO)
    assert open_model(model) is model


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "there are none"),
        (b"PK\x03\x04", "zip archive"),
        (PROTO.SerializeToString()[:-5], "cut short"),
        (b"\xff" * 20, "protobuf cannot be parsed"),
    ],
)
def test_damaged_bytes(data, words):
    with pytest.raises(ModelError, match=f"the bytes of the model.*{words}"):
        open_model(data)


def test_bytes_of_a_model_whose_weights_lie_elsewhere():
    proto = onnx.ModelProto()
    proto.CopyFrom(PROTO)
    tensor = proto.graph.initializer[0]
    tensor.ClearField("float_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w.bin")
    with pytest.raises(ModelError, match=r"'w' lies in another file; pass the path"):
        open_model(proto.SerializeToString())


@pytest.mark.filterwarnings("ignore")
def test_a_module_computes_what_pytorch_computes(torch, module):
    x = torch.randn(3, 6)
    wanted = module(x).detach().numpy()
    exported = torch.export.export(module, (x,))
    for model in (open_model(module, (x,)), open_model(exported)):
        # Six terms of a dot product in another order: a few units in the last place.
        np.testing.assert_allclose(run(model, x.numpy()), wanted, rtol=1e-5, atol=1e-6)


def test_a_module_needs_example_inputs(module):
    with pytest.raises(UsageError, match=r"Sequential.*example_inputs.*from_torch"):
        open_model(module)


def test_nothing_else_takes_example_inputs():
    with pytest.raises(UsageError, match=r"are for a torch\.nn\.Module"):
        open_model(PROTO, (1,))


def test_what_is_no_model_is_refused_without_pytorch(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(UsageError, match=r"int is no model; pass the path of an \.onnx file"):
        open_model(5)
    assert "torch" not in sys.modules
