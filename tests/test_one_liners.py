"""A model of PyTorch, or bytes, in; a program that takes tensors out: by one call each."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import narrowpass


@pytest.fixture(scope="module")
def proto():
    """A classifier of two layers with weights of a fixed seed."""
    drawn = np.random.default_rng(0)
    weights = {
        "w1": drawn.standard_normal((32, 64)).astype(np.float32) / 6,
        "w2": drawn.standard_normal((64, 10)).astype(np.float32) / 8,
    }
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[n, 32] x) => (float[n, 10] y) { a = MatMul(x, w1) b = Relu(a) y = MatMul(b, w2) }
    """)
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in weights.items()]
    model.graph.initializer.extend(tensors)
    return model


@pytest.fixture(scope="module")
def samples():
    drawn = np.random.default_rng(1)
    return [{"x": drawn.standard_normal((8, 32)).astype(np.float32)} for _ in range(8)]


@pytest.fixture(scope="module")
def wanted(proto, samples):
    runtime = pytest.importorskip("onnxruntime")
    session = runtime.InferenceSession(proto.SerializeToString())
    return np.concatenate([session.run(None, sample)[0] for sample in samples])


def outputs(bundle, samples, backend="xnn-cpu"):
    with narrowpass.load(bundle, backend, cache="memory") as program:
        return np.concatenate([program.run(sample)["y"] for sample in samples])


def relative(found, wanted):
    return np.linalg.norm(found - wanted) / np.linalg.norm(wanted)


@pytest.mark.parametrize(
    ("to", "limit", "op_type"),
    [
        # Half a step of 1/127 of the range (3 to 4 deviations) for weights and rows: 1 %, twice.
        ("int8", 0.03, "QuantizeLinear"),
        # Weights have 15 steps over 6 deviations: an error of 0.12 deviations, in both layers.
        ("int4", 0.2, "DequantizeLinear"),
        # Eleven bits of mantissa.
        ("float16", 2e-3, "Cast"),
        # Eight bits.
        ("bfloat16", 2e-2, "Cast"),
    ],
)
def test_quantize(proto, samples, wanted, to, limit, op_type):
    bundle = narrowpass.quantize(proto.SerializeToString(), samples, to=to)
    found = {node.op_type for node in bundle.methods["main"].graph}
    assert op_type in found
    assert 0 < relative(outputs(bundle, samples), wanted) < limit


def test_int8_without_samples_is_dynamic(proto, samples, wanted, tmp_path):
    out = tmp_path / "m.narrow"
    narrowpass.quantize(proto, out=out)
    assert 0 < relative(outputs(out, samples), wanted) < 0.03


def test_optimize_alone_keeps_outputs(proto, samples, wanted):
    bundle = narrowpass.optimize(proto)
    # 64 float32 terms are accumulated in another order.
    np.testing.assert_allclose(outputs(bundle, samples), wanted, rtol=1e-4, atol=1e-5)


def test_optimize_within_an_error(proto, samples, wanted):
    bundle = narrowpass.optimize(
        proto, max_error="rel:0.05", objective="bytes", calibration=samples
    )
    assert "auto{" in bundle.pipeline
    assert relative(outputs(bundle, samples), wanted) < 0.05


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["xnn-cpu", "reference", "onnxruntime"])
def test_a_module_and_its_tensors(backend):
    torch = pytest.importorskip("torch")
    pytest.importorskip("onnxscript")
    if backend == "onnxruntime":
        pytest.importorskip("narrowpass_onnxruntime")
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh()).eval()
    x = torch.randn(3, 6)
    with narrowpass.load(module, backend, example_inputs=(x,), cache="memory") as program:
        (name,) = [spec.name for spec in program.inputs()]
        for _ in range(3):  # later runs of equal shapes take the fast path
            x = torch.randn(3, 6)
            (tensors,) = program.run({name: x}).values()
            (arrays,) = program.run({name: x.numpy()}).values()
            np.testing.assert_array_equal(tensors, arrays)
            # Six terms are accumulated in another order; tanh is within a few units.
            np.testing.assert_allclose(tensors, module(x).detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", ["xnn-cpu", "reference"])
def test_a_session_takes_tensors(backend):
    torch = pytest.importorskip("torch")
    model = onnx.parser.parse_model("""
        <ir_version: 10, opset_import: ["": 21]>
        g (float[n, 1, 2] x, float[n, p, 2] past) => (float[n, q, 2] present)
        { present = Concat<axis = 1>(past, x) }
    """)
    x = torch.arange(12, dtype=torch.float32).reshape(3, 2, 1, 2)
    with narrowpass.load(model, backend, cache="memory") as program, program.session() as session:
        for step in x:
            session.run({"x": step})
        found = session.values()["past"]
    np.testing.assert_array_equal(found, x.numpy()[:, :, 0].transpose(1, 0, 2))
