"""What a backend and a program do where they override nothing."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from plugins_kit import REFERENCE

import narrowpass
from narrowpass import Accept, Backend, NodePlan, OpDtypes, load_plugins
from narrowpass.errors import BackendError, UsageError
from narrowpass.runtime.backend import CompileOptions, compile_bundle
from narrowpass_reference import ReferenceBackend
from narrowpass_testing import model_from_text

TEXT = "g (float[N] x) => (float[N] y) { h = Relu(x) y = Neg(h) }"


class Plain(Backend):
    name = "plain"

    def supports(self, node):
        return Accept()

    def compile(self, bundle, options):
        return ReferenceBackend().compile(bundle, options)


def bundle():
    plugins = load_plugins(entry_points=[*REFERENCE])
    return narrowpass.build(model_from_text(TEXT), "", plugins=plugins)


def test_a_backend_that_lowers_nothing_has_no_stages():
    assert Plain().stages == ()
    with pytest.raises(UsageError, match="'plain' has no stage 'final'"):
        Plain().plan_text(bundle(), "final", CompileOptions())


def test_a_backend_that_knows_nothing_has_no_pipeline_limits_nor_gain():
    node = ir.node("Relu", [ir.val("x")])
    assert Plain().default_pipeline(["fold"]) == ""
    assert Plain().quantization_spec().operators == {}
    assert Plain().gain(node, OpDtypes("float32", "float16")) == 0.0


class Slow(ReferenceBackend):
    """Has no kernel for some nodes."""

    name = "slow"
    closed = 0

    def __init__(self, reasons):
        super().__init__()
        object.__setattr__(self, "reasons", reasons)

    def compile(self, bundle, options):
        program = super().compile(bundle, options)
        plans = [
            NodePlan("main", f"n{i}", "Relu", "float", None, "slow", reason)
            for i, reason in enumerate(self.reasons)
        ]
        program.explain = lambda *_: plans
        program.close = lambda: setattr(Slow, "closed", Slow.closed + 1)
        return program


def test_native_kernels_are_required_of_all_nodes():
    native = CompileOptions(require_native=True)
    program = compile_bundle(Slow([""]), bundle(), native)
    assert program.run({"x": np.array([-1, 2], np.float32)})["y"].tolist() == [0, -2]
    before = Slow.closed
    with pytest.raises(BackendError, match="1 nodes have no native kernel of slow:\n  Relu 'n1'"):
        compile_bundle(Slow(["", "it is of rank 9"]), bundle(), native)
    assert Slow.closed == before + 1
    with pytest.raises(BackendError, match="7 nodes have no native kernel") as error:
        compile_bundle(Slow(["no"] * 7), bundle(), native)
    assert str(error.value).endswith("'n4': no\n  and 2 more")
    # Where they are not required, nobody asks.
    compile_bundle(Slow(["no"]), bundle(), CompileOptions())


def test_outputs_and_the_end_of_a_program():
    program = compile_bundle(ReferenceBackend(), bundle(), CompileOptions())
    assert [(spec.name, spec.dtype) for spec in program.outputs()] == [("y", "float")]
    narrowpass.Program.close(program)  # of one that holds nothing
    assert program.run({"x": np.array([3], np.float32)})["y"].tolist() == [-3]


def test_caches_are_stored_as_the_model_does():
    text = "g (float[1,2] x, float[1,2] h) => (float[1,2] hn) { hn = Add(h, x) }"
    plugins = load_plugins(entry_points=[*REFERENCE])
    built = narrowpass.build(model_from_text(text), "", plugins=plugins)
    with narrowpass.load(built, "reference", plugins=plugins) as program:
        program.session().close()
        with pytest.raises(UsageError, match="leave `cache_dtype` out"):
            program.session("float16")
