"""Models that are quantized already, repaired and run by the native backend on bytes."""

from __future__ import annotations

import warnings

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import narrowpass

pytest.importorskip("narrowpass_int8_sym")
pytest.importorskip("narrowpass_xnn_cpu")

RNG = np.random.default_rng(12)


def convolutions(weight_type):
    """Build two convolutions in the form of QLinearConv, with unsigned activations."""
    shift = 128 if weight_type == np.uint8 else 0
    known = {
        "xs": np.float32(0.02),
        "xz": np.uint8(110),
        "hs": np.float32(0.04),
        "hz": np.uint8(0),
        "ys": np.float32(0.06),
        "yz": np.uint8(128),
    }
    for name, shape in (("v", (8, 3, 3, 3)), ("w", (8, 1, 3, 3))):
        known[name] = (RNG.integers(-127, 128, shape) + shift).astype(weight_type)
        known[f"{name}s"] = RNG.uniform(0.004, 0.01, 8).astype(np.float32)
        known[f"{name}z"] = np.full(8, shift, weight_type)
        known[f"{name}b"] = RNG.integers(-2000, 2000, 8).astype(np.int32)

    def layer(source, which, to, weight, **attributes):
        parameters = [f"{which}s", f"{which}z"]
        after = [f"{to}s", f"{to}z", f"{weight}b"]
        inputs = [source, *parameters, weight, f"{weight}s", f"{weight}z", *after]
        return helper.make_node("QLinearConv", inputs, [f"{to}q"], name=to, **attributes)

    nodes = [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        layer("xq", "x", "h", "v", strides=[2, 2]),
        layer("hq", "h", "y", "w", group=8, pads=[1, 1, 1, 1]),
        helper.make_node("DequantizeLinear", ["yq", "ys", "yz"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 17, 17])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 8, 8])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in known.items()],
    )
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@pytest.mark.parametrize("weight_type", [np.int8, np.uint8])
def test_convolutions_of_bytes(weight_type):
    """At most one step off: accumulators are requantized in float32 by both."""
    proto = convolutions(weight_type)
    bundle = narrowpass.build(ir.from_proto(proto), "fold,repair-quantized", target="xnn-cpu")
    feeds = {"x": RNG.standard_normal((1, 3, 17, 17)).astype(np.float32)}
    (right,) = ReferenceEvaluator(proto).run(None, feeds)
    with narrowpass.load(bundle, "xnn-cpu") as program:
        got = program.run(feeds)["y"]
        kernels = {plan.node: plan.kernel for plan in program.explain() if plan.op_type == "Conv"}
    assert sorted(kernels) == ["h", "y"]
    assert all("int8" in kernel for kernel in kernels.values())
    assert np.abs(got - right).max() <= 0.06 * 1.001
    assert (got == right).mean() > 0.95
    assert len(np.unique(right)) > 20


@pytest.mark.parametrize("preset", ["default_symmetric", "default_per_channel_symmetric"])
def test_trained_with_fake_quantization(preset, tmp_path):
    """A model of PyTorch's presets agrees with PyTorch on bytes: at most one step off."""
    torch = pytest.importorskip("torch")
    with warnings.catch_warnings():
        # PyTorch deprecates the quantization whose presets these are, and this exporter.
        warnings.simplefilter("ignore")
        right, x, scale = trained(torch, f"{preset}_qnnpack_qat_qconfig", tmp_path / "trained.onnx")
    bundle = narrowpass.build(
        {"main": tmp_path / "trained.onnx"}, "fold,repair-quantized", target="xnn-cpu"
    )
    (report,) = bundle.reports[-1].methods.values()
    matmuls = [d for d in report.decisions if d["op_type"] in ("Conv", "Gemm")]
    assert [d["decision"] for d in matmuls] == ["int8"] * 3
    with narrowpass.load(bundle, "xnn-cpu") as program:
        (got,) = program.run({"x": x}).values()
    assert np.abs(got - right).max() <= scale * 1.001
    assert len(np.unique(right)) > 5


def trained(torch, preset, path):
    """Observe ranges without training, and export; return a result, its input and its scale."""
    from torch.ao.quantization import FakeQuantizeBase, QConfigMapping, qconfig
    from torch.ao.quantization.backend_config import get_qnnpack_backend_config
    from torch.ao.quantization.quantize_fx import prepare_qat_fx

    class Exported(torch.nn.Module):
        def __init__(self, observed):
            super().__init__()
            self.register_buffer("scale", observed.scale.clone())
            self.register_buffer("zero_point", observed.zero_point.to(torch.int32))
            self.axis = observed.ch_axis if observed.is_per_channel else None

        def forward(self, x):
            if self.axis is not None:
                given = self.scale, self.zero_point, self.axis
                return torch.fake_quantize_per_channel_affine(x, *given, -128, 127)
            given = float(self.scale), int(self.zero_point)
            return torch.fake_quantize_per_tensor_affine(x, *given, -128, 127)

    torch.manual_seed(0)
    layers = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Conv2d(8, 8, 3, groups=8),
        torch.nn.Flatten(),
        torch.nn.Linear(8 * 36, 10),
    )
    x = torch.randn(1, 3, 16, 16)
    chosen = QConfigMapping().set_global(getattr(qconfig, preset))
    backend = get_qnnpack_backend_config()
    prepared = prepare_qat_fx(layers.train(), chosen, (x,), backend_config=backend)
    for _ in range(3):
        prepared(torch.randn(4, 3, 16, 16))
    prepared.eval()
    for name, module in list(prepared.named_modules(remove_duplicate=False)):
        if isinstance(module, FakeQuantizeBase):
            parent, _, last = name.rpartition(".")
            setattr(prepared.get_submodule(parent), last, Exported(module))
    options = {"input_names": ["x"], "opset_version": 17, "dynamo": False}
    torch.onnx.export(prepared, (x,), path, **options)
    scale = [m.scale for m in prepared.modules() if isinstance(m, Exported) and m.axis is None][-1]
    return prepared(x).detach().numpy(), x.numpy(), float(scale)
