"""What a backend raises while data is looked at is the backend's, and not a defect of the pass."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from int8_kit import floats, model
from onnx import helper

from narrowpass import Context, Samples
from narrowpass.errors import BackendError
from narrowpass.framework.pipeline import Pipeline
from narrowpass_analysis.metrics import Tolerance
from narrowpass_int8_sym.equalize import Equalize
from narrowpass_int8_sym.int8_sym import Int8Sym
from narrowpass_reference import ReferenceBackend

TAKERS = {
    "all": Int8Sym(),
    "ranges": Int8Sym(smooth=False, bias_correction=False),
    "tolerance": Int8Sym(mode="dynamic", tolerance=Tolerance.parse("cosine:0.9")),
    "equalize": Equalize(),
}


class Broken(ReferenceBackend):
    """Fails in one of its calls."""

    name = "broken"

    def __init__(self, at: str, error: Exception) -> None:
        self.at, self.error = at, error

    def compile(self, bundle, options):
        if self.at == "compile":
            raise self.error
        program = super().compile(bundle, options)

        def run(*_, **__):
            raise self.error

        program.run = run
        program.observe = run
        return program


def chain() -> ir.Model:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("Relu", ["a"], ["r"]),
        helper.make_node("MatMul", ["r", "w2"], ["y"]),
    ]
    constants = {"w": floats(16, 16), "w2": floats(16, 16)}
    return ir.from_proto(model(nodes, {"x": ["N", 16]}, {"y": ["N", 16]}, constants))


def failure(taker: str, at: str, error: Exception) -> BackendError:
    samples = Samples("the data", lambda: [{"x": np.ones((2, 16), np.float32)}] * 2)
    ctx = Context(target=Broken(at, error), samples=samples)
    with pytest.raises(BackendError) as caught:
        Pipeline((TAKERS[taker],)).run(chain(), ctx)
    return caught.value


@pytest.mark.parametrize("at", ["compile", "run"])
@pytest.mark.parametrize("taker", TAKERS)
def test_a_backends_own_error_names_backend_node_and_remedy(taker, at):
    message = str(failure(taker, at, BackendError("node 'n1' (Relu): out of luck")))
    assert "backend 'broken'" in message
    assert "node 'n1' (Relu): out of luck" in message
    assert "--target" in message
    assert "defect of the pass" not in message
    assert ("sample 1 of the data" in message) == (at == "run")


@pytest.mark.parametrize("at", ["compile", "run"])
@pytest.mark.parametrize("taker", TAKERS)
def test_what_a_backend_does_not_expect_is_its_defect(taker, at):
    error = failure(taker, at, ZeroDivisionError("surprise"))
    causes = [error]
    while (cause := causes[-1].__cause__) is not None:
        causes.append(cause)
    assert isinstance(causes[-1], ZeroDivisionError)
    assert "backend 'broken'" in str(error)
    assert "ZeroDivisionError: surprise; this is a defect of the backend" in str(error)
    assert "defect of the pass" not in str(error)
