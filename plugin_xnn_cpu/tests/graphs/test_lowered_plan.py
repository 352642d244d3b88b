"""Lowered plans: printed, verified and compared as text."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from flow_kit import model_of
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_recipes import chain
from onnx import TensorProto, helper, numpy_helper

import narrowpass
from narrowpass.bundle import Bundle
from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.lower.numerics import DEFAULT
from narrowpass_xnn_cpu.lower.storage import COMPUTATIONS, XnnStorage
from narrowpass_xnn_cpu.lowered.op import Computation
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition
from narrowpass_xnn_cpu.native import isa, library, target
from narrowpass_xnn_cpu.stages import plan_of

BACKEND = XnnCpuBackend()
OPTIONS = narrowpass.CompileOptions(cache=False, threads=1)


def network():
    """Return a convolution, a residual, a Reshape to a computed shape and a matmul."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((8, 4, 3, 3)),
        "b": rng.standard_normal(8),
        "v": rng.standard_normal((8, 8, 1, 1)),
        "m": rng.standard_normal((8, 5)),
    }
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="first", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "v"], ["d"], name="second"),
        helper.make_node("Add", ["d", "r"], ["s"], name="add"),
        helper.make_node("GlobalAveragePool", ["s"], ["g"], name="mean"),
        helper.make_node("Shape", ["g"], ["sizes"], name="shape", end=2),
        helper.make_node("Reshape", ["g", "sizes"], ["f"], name="flat"),
        helper.make_node("MatMul", ["f", "m"], ["y"], name="head"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4, 6, 6])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 5])],
        [numpy_helper.from_array(w.astype(np.float32), name) for name, w in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def text(model, stage):
    bundle = Bundle({"main": ir.from_proto(model)})
    return BACKEND.plan_text(bundle, stage, OPTIONS)


def lowered(model):
    """Return the first native partition after the stage `layout`."""
    inferred = ir.from_proto(onnx.shape_inference.infer_shapes(model))
    sections = plan_of("layout", "main", inferred).sections
    return next(each.body for each in sections if isinstance(each.body, LoweredPartition))


def everything(cls=Computation):
    for each in cls.__subclasses__():
        if dataclasses.is_dataclass(each) and "mnemonic" in vars(each):
            yield each
        yield from everything(each)


def test_every_computation_can_be_stored_and_has_a_mnemonic_of_its_own():
    assert {each.__qualname__ for each in everything()} == {c.__qualname__ for c in COMPUTATIONS}
    assert len({each.mnemonic for each in COMPUTATIONS}) == len(COMPUTATIONS)
    classes = XnnStorage(DEFAULT).classes()
    assert all(classes[each.__name__] is each for each in COMPUTATIONS)


@pytest.mark.parametrize("stage", BACKEND.stages)
def test_a_constant_has_a_text(stage):
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[N, 3] x) => (float[N, 3] y) '
        "{ c = Constant<value = float[3] {1, 2, 3}>() a = Relu(x) y = Add(a, c) }"
    )
    printed = text(onnx.shape_inference.infer_shapes(model), stage)
    assert printed.startswith(f'plan "{stage}" "main" {{\n')


@pytest.mark.parametrize("stage", BACKEND.stages)
@given(seed=st.integers(0, 10**6), nodes=st.integers(1, 14))
@settings(max_examples=20, deadline=None, derandomize=True)
def test_plans_of_random_graphs_are_valid_and_printed_alike(stage, seed, nodes):
    """A partition is verified before it is printed."""
    model = chain(seed, nodes).model
    printed = text(model, stage)
    assert printed.startswith(f'plan "{stage}" "main" {{\n')
    assert text(model, stage) == printed


def test_plans_are_selected_for_another_processor_without_the_library(monkeypatch):
    """No stage before `pack` needs the library, or the processor that the plan is for."""

    def refuse():
        raise AssertionError("the library is loaded")

    monkeypatch.setattr(library, "_load", refuse)
    model = ir.from_proto(onnx.shape_inference.infer_shapes(network()))
    selected = {}
    for level in isa.LEVELS:
        with target.planning_for(target.Target.named(level)):
            plan = plan_of("select", "main", model.clone()).text()
        (line,) = [line for line in plan.splitlines() if 'node "head"' in line]
        selected[level] = line.partition("kernel: ")[2].partition(" (")[0]
    assert selected.pop("sse4") == '"xnnpack fully connected'
    assert set(selected.values()) == {'"own fully connected'}


def test_fused_operations_have_their_nodes_and_epilogue():
    plan = text(network(), "fuse")
    (first,) = [line for line in plan.splitlines() if 'node "first"' in line]
    assert 'node "relu"' in first
    assert "epilogue Epilogue(limits: [0.0, inf])" in first
    (second,) = [line for line in plan.splitlines() if 'node "second"' in line]
    # XNNPACK's convolutions, which SSE4 and Neon get, have no residual.
    assert ('residual "r"' in second) == (target.current().fp32_lanes > 0)


def test_nodes_that_are_not_native_have_reasons():
    model = model_of("g (string[N] x) => (string[N] y) { y = StringConcat(x, x) }", opset=20)
    plan = text(model, "partition")
    assert re.search(r"host \{\n\s+StringConcat .* reason \"", plan)


def test_lowered_operations_have_layouts_and_constants_names_of_contents():
    plan = text(network(), "layout")
    (first,) = [line for line in plan.splitlines() if 'node "first"' in line]
    assert "layout [0, 2, 3, 1]" in first
    assert re.search(r'weight: weight\(float32\[8, 3, 3, 4\] "[0-9a-f]{12}" ""\)', first)
    assert plan == text(network(), "layout")


ABSENT = """
import sys
from importlib.abc import MetaPathFinder

class Absent(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "narrowpass_xnn_cpu.native._xnn":
            raise ImportError("there is no extension")

sys.meta_path.insert(0, Absent())
"""
PRINT_STAGE = (
    ABSENT
    + """
import onnx
import onnx_ir as ir
from narrowpass import CompileOptions
from narrowpass.bundle import Bundle
from narrowpass_xnn_cpu.backend import XnnCpuBackend

assert "there is no extension" in XnnCpuBackend().available()
for path in sys.argv[2:]:
    bundle = Bundle({"main": ir.from_proto(onnx.load(path))})
    options = CompileOptions(cache=False, threads=1)
    sys.stdout.write(XnnCpuBackend().plan_text(bundle, sys.argv[1], options))
"""
)
LIBRARY_STAGES = ("pack", "bind")


@pytest.mark.parametrize(
    "stage",
    [
        pytest.param(stage, marks=[] if stage == "select" else pytest.mark.anywhere)
        for stage in BACKEND.stages
        if stage not in LIBRARY_STAGES
    ],
)
def test_a_stage_before_packing_needs_no_library(stage, tmp_path):
    """The extension cannot be imported in a process that prints the same plans."""
    models = [network(), *(chain(seed, 12).model for seed in range(12))]
    paths = [tmp_path / f"{number}.onnx" for number in range(len(models))]
    for model, path in zip(models, paths, strict=True):
        onnx.save(model, path)
    command = [sys.executable, "-c", PRINT_STAGE, stage, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout == "".join(text(model, stage) for model in models)


@pytest.mark.anywhere
@pytest.mark.parametrize("stage", LIBRARY_STAGES)
def test_packing_and_binding_need_the_library(stage, tmp_path):
    path = tmp_path / "m.onnx"
    onnx.save(network(), path)
    command = [sys.executable, "-c", PRINT_STAGE, stage, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "xnn-cpu is not available" in done.stderr


@pytest.mark.parametrize("backend", ["xnn-cpu", "xnn-cpu{winograd=false}"])
def test_the_command_prints_a_stage_without_the_library(backend, tmp_path):
    path = str(tmp_path / "m.onnx")
    onnx.save(network(), path)
    arguments = ["explain", path, "--stage", "select", "--backend", backend]
    code = f"{ABSENT}\nfrom narrowpass.cli import main\nmain()"
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == explain(*arguments[1:]).stdout


def test_a_layout_that_is_no_permutation():
    partition = lowered(network())
    wrong = partition.with_ops(lambda op: dataclasses.replace(op, layout=(0, 2, 3, 3)))
    with pytest.raises(BackendError, match="no permutation"):
        wrong.verify()


def test_a_place_that_is_no_permutation():
    partition = lowered(network())
    place = dataclasses.replace(partition.places[0], perm=(0, 0))
    with pytest.raises(BackendError, match="lies in the order"):
        dataclasses.replace(partition, places=(place,)).verify()


def test_an_operand_that_is_computed_later():
    partition = lowered(network())
    with pytest.raises(BackendError, match="is not computed before"):
        dataclasses.replace(partition, items=partition.items[::-1]).verify()


def test_a_slot_that_is_written_twice():
    partition = lowered(network())
    first = partition.ops[0].output
    with pytest.raises(BackendError, match=r"writes .*, as .* does"):
        partition.with_ops(lambda op: dataclasses.replace(op, output=first)).verify()


def test_an_output_that_is_not_computed():
    partition = lowered(network())
    with pytest.raises(BackendError, match="'y' is not computed"):
        dataclasses.replace(partition, items=()).verify()


def explain(*arguments):
    command = [sys.executable, "-m", "narrowpass", "explain", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.anywhere
def test_the_command_prints_a_stage(tmp_path):
    path = str(tmp_path / "m.onnx")
    onnx.save(network(), path)
    done = explain(path, "--stage", "layout")
    assert done.returncode == 0
    assert done.stdout.startswith('plan "layout" "main" {\n  lowered {\n')
    assert 'layout [0, 2, 3, 1] node "first"' in done.stdout
    wrong = explain(path, "--stage", "none")
    assert wrong.returncode != 0
    assert "its stages: canonicalize" in wrong.stderr


def test_kernels_and_bytes_after_packing():
    plan = text(network(), "pack")
    assert 'with {kernel: "' in plan


def test_shapes_calls_and_memory_after_binding():
    """The arena holds inner values one after the other; the result is written to the output."""
    plan = text(network(), "bind")
    first, second, head = (
        next(line for line in plan.splitlines() if f'node "{name}"' in line)
        for name in ("first", "second", "head")
    )
    assert "shape: [1, 6, 6, 8]" in first
    assert 'memory: "arena"' in first
    assert "shape: [1, 6, 6, 8]" in second
    assert 'shape: [1, 5], memory: "output y"' in head
    assert 'call: "NP_' in head


def test_an_input_without_a_rank_is_not_bound():
    model = network()
    model.graph.input[0].type.tensor_type.ClearField("shape")
    with pytest.raises(BackendError, match="input 'x' is no tensor of a known dtype and rank"):
        text(model, "bind")
