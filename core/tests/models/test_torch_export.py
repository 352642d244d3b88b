"""Models from PyTorch compute what the module computes."""

from __future__ import annotations

import importlib
import sys

import numpy as np
import pytest

from narrowpass_ir.errors import ModelError, UsageError
from narrowpass_ir.torch_export import from_torch


@pytest.fixture
def torch():
    pytest.importorskip("onnxscript")
    return pytest.importorskip("torch")


@pytest.fixture
def module(torch):
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 4)).eval()


def run(model, x):
    import onnx
    import onnx_ir as ir
    from onnx.reference import ReferenceEvaluator

    proto = ir.to_proto(model)
    onnx.checker.check_model(proto)
    (name,) = [value.name for value in proto.graph.input]
    return ReferenceEvaluator(proto).run(None, {name: x})[0]


@pytest.mark.filterwarnings("ignore")
def test_a_module_with_a_dynamic_axis(torch, module):
    dynamic = ({0: torch.export.Dim("batch")},)
    model = from_torch(module, (torch.zeros(3, 6),), dynamic_shapes=dynamic, output_names=["y"])
    assert [value.name for value in model.graph.outputs] == ["y"]
    x = np.random.default_rng(0).standard_normal((7, 6)).astype(np.float32)
    expected = module(torch.from_numpy(x)).detach().numpy()
    # Additions of at most 6 numbers in float32.
    np.testing.assert_allclose(run(model, x), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_an_exported_program(torch, module):
    exported = torch.export.export(module, (torch.zeros(2, 6),))
    x = np.ones((2, 6), np.float32)
    expected = module(torch.from_numpy(x)).detach().numpy()
    np.testing.assert_allclose(run(from_torch(exported), x), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore")
def test_a_module_that_cannot_be_exported(torch):
    class Odd(torch.nn.Module):
        def forward(self, x):
            return x if x.sum().item() > 0 else -x

    with pytest.raises(ModelError, match="PyTorch cannot export Odd"):
        from_torch(Odd(), (torch.ones(2),))


def test_no_module(torch):
    with pytest.raises(UsageError, match="not int"):
        from_torch(3)


@pytest.mark.parametrize("missing", ["torch", "onnxscript"])
def test_without_pytorch(monkeypatch, missing):
    real = importlib.import_module

    def find(name):
        if name == missing:
            raise ImportError(f"No module named {name!r}")
        return sys if name in ("torch", "onnxscript") else real(name)

    monkeypatch.setattr(importlib, "import_module", find)
    with pytest.raises(UsageError, match=rf"from_torch needs {missing}.*pip install"):
        from_torch(None)
