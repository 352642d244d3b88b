"""If against onnxruntime: branches that shapes decide, and others."""

from __future__ import annotations

import tracemalloc

import numpy as np
import onnx
import pytest
from flow_kit import agrees, floats, model_of
from xnn_kit import check, compile_model

from narrowpass.runtime.meters import Extremes

SQUEEZE = """g (float[N, M, 4] x) => (float[%s] y) <int64[1] one = {1}, int64 i = {1}> {
    s = Shape(x) n = Gather(s, i) e = Constant<value = int64 {1}>() c = Equal(n, e)
    q = If (c) <then_branch = t () => (float[N, 4] a) { a = Squeeze(x, one) },
                else_branch = f () => (float[N, M, 4] b) { b = Identity(x) }>
    %s }"""


def test_an_if_that_shapes_decide_is_compiled_with_its_readers():
    """Its branches differ in rank; other shapes decide otherwise, and come again."""
    model = model_of(SQUEEZE % ("A, B, C", "r = Relu(q) y = Neg(r)"))
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    program = compile_model(model)
    for shape in ((2, 1, 4), (2, 3, 4), (5, 1, 4), (5, 3, 4), (2, 1, 4)):
        check(model, {"x": floats(*shape)}, program=program, native=None, oracle="onnxruntime")
        plans = {plan.op_type: plan for plan in program.explain()}
        assert plans["Relu"].partition == plans["Neg"].partition == 0
        assert plans["If"].kernel == "decided by shapes"
        assert ("Squeeze" in plans) is (shape[1] == 1)


def test_ifs_in_branches_are_decided_by_shapes_too():
    model = model_of("""g (float[N, M] x) => (float[A] y)
        <int64 i = {0}, int64 j = {1}, int64[1] k = {-1}> {
        s = Shape(x) n = Gather(s, i) m = Gather(s, j) e = Constant<value = int64 {1}>()
        c = Equal(n, e) d = Equal(m, e)
        q = If (c) <
            then_branch = t () => (float[B] a) {
                a = If (d) <then_branch = t2 () => (float[C] a2) { z = Neg(x) a2 = Reshape(z, k) },
                            else_branch = f2 () => (float[D] b2) { z = Relu(x) b2 = Reshape(z, k) }>
            },
            else_branch = f () => (float[E] b) {
                z = Abs(x)
                b = If (d) <then_branch = t3 () => (float[C] a3) { a3 = Reshape(z, k) },
                            else_branch = f3 () => (float[D] b3) {
                                w = Add(z, x) b3 = Reshape(w, k) }>
            }>
        y = Add(q, q) }""")
    shapes = [(1, 1), (1, 3), (3, 1), (2, 3), (1, 1)]
    program = agrees(model, *({"x": floats(*shape)} for shape in shapes))
    assert "control flow" not in {plan.kernel for plan in program.explain()}


def test_more_decisions_than_forms_are_kept():
    """Each bit of the size decides one of four Ifs: 16 ways."""
    lines, value = ["s = Shape(x) n = Squeeze(s)"], "x"
    for bit in range(4):
        lines.append(
            f"d{bit} = Constant<value = int64 {{{2**bit}}}>() two = Constant<value = int64 {{2}}>()"
            f" h{bit} = Div(n, d{bit}) m{bit} = Mod(h{bit}, two) c{bit} = Cast<to = 9>(m{bit})"
            f" v{bit} = If (c{bit}) <then_branch = t{bit} () => (float[N] a{bit})"
            f" {{ a{bit} = Add({value}, x) }}, else_branch = f{bit} () => (float[N] b{bit})"
            f" {{ b{bit} = Mul({value}, x) }}>".replace("two", f"two{bit}")
        )
        value = f"v{bit}"
    model = model_of(f"g (float[N] x) => (float[N] y) {{ {' '.join(lines)} y = Neg({value}) }}")
    agrees(model, *({"x": floats(size)} for size in range(16)))


def test_kept_values_and_results_behind_a_decided_if():
    """A result of an If can be an output; a branch may return an outer value unchanged."""
    model = model_of("""g (float[N] x) => (float[A] y, float[B] z) <int64 i = {0}> {
        s = Shape(x) n = Gather(s, i) e = Constant<value = int64 {2}>() c = Equal(n, e) h = Neg(x)
        y, z = If (c) <then_branch = t () => (float[C] a, float[D] b) {
                            a = Identity(h) b = Relu(x) },
                       else_branch = f () => (float[C] a, float[D] b) { b = Abs(h) a = Add(b, h) }>
        }""")
    program = compile_model(model, keep=["h", "y"])
    for size in (2, 3, 2):
        x = floats(size)
        got = program.run({"x": x}, outputs=["y", "h", "z"])
        np.testing.assert_array_equal(got["h"], -x)
        np.testing.assert_array_equal(got["y"], -x if size == 2 else np.abs(x) - x)
        np.testing.assert_array_equal(got["z"], np.maximum(x, 0) if size == 2 else np.abs(x))


def test_observed_values_are_those_of_the_branch_that_is_taken():
    model = model_of(SQUEEZE % ("A, B, C", "r = Relu(q) y = Neg(r)"))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    program = compile_model(model, keep=["r"], observe=True)
    for shape in ((2, 1, 4), (2, 3, 4)):
        x, meter = floats(*shape), Extremes()
        program.observe({"x": x}, {"r": meter})
        assert meter.high == x.max()


def test_results_of_branches_are_not_shared_with_feeds_or_with_each_other():
    """Values that a branch computes are not copied; feeds and repeated values are."""
    model = model_of("""g (float[N] x, bool c) => (float[N] p, float[N] q, float[N] r) {
        p, q, r = If (c) <then_branch = t () => (float[N] a, float[N] b, float[N] d) {
                              a = Neg(x) b = Identity(a) d = Identity(x) },
                          else_branch = e () => (float[N] a, float[N] b, float[N] d) {
                              d = Relu(x) b = Abs(x) a = Identity(x) }> }""")
    program = compile_model(model)
    for condition in (True, False):
        feeds = {"x": floats(5), "c": np.array(condition)}
        got = check(model, feeds, program=program, native=None).run(feeds)
        arrays = [feeds["x"], *got.values()]
        for index, one in enumerate(arrays):
            assert not any(np.shares_memory(one, other) for other in arrays[:index])
        before = {name: value.copy() for name, value in got.items()}
        program.run({**feeds, "x": floats(5, seed=9)})
        for name, value in before.items():
            np.testing.assert_array_equal(got[name], value)


def test_results_of_branches_are_not_copied():
    model = model_of("""g (float[N] x, bool c) => (float[N] y) {
        y = If (c) <then_branch = t () => (float[N] a) { a = Neg(x) },
                    else_branch = e () => (float[N] b) { b = Abs(x) }> }""")
    program = compile_model(model)
    feeds = {"x": floats(1 << 20), "c": np.array(True)}
    program.run(feeds)
    tracemalloc.start()
    got = program.run(feeds)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Its memory is that of the first result, which is gone.
    assert peak < got["y"].nbytes / 2


@pytest.mark.parametrize(
    "branch", ["b = Identity(x)", "z = Constant<value = float {3}>() b = Mul(x, z)"]
)
def test_small_branches_are_both_computed_and_chosen_among(branch):
    model = model_of(
        f"""g (float[4] x, bool c) => (float[4] y) {{
        n = Neg(x)
        q = If (c) <then_branch = t () => (float[4] a) {{ a = Tanh(n) }},
                    else_branch = e () => (float[4] b) {{ {branch} }}>
        y = Relu(q) }}"""
    )
    feeds = [
        {"x": x, "c": np.array(c)}
        for x in (floats(4), np.full(4, np.nan, np.float32))
        for c in (True, False)
    ]
    program = agrees(model, *feeds)
    plans = {plan.op_type: plan for plan in program.explain()}
    assert "If" not in plans
    assert plans["Where"].partition == plans["Relu"].partition is not None


@pytest.mark.parametrize(
    ("then", "other"),
    [
        ("a = Gather<axis = 0>(x, at)", "b = Identity(x)"),
        ("a = Concat<axis = 0>(x, x)", "b = Identity(x)"),
        ("a = Div(x, x)", "b = Cast<to = 1>(at)"),
    ],
)
def test_branches_that_may_fail_or_differ_are_not_both_computed(then, other):
    """An index that is out of range counts only where its branch is taken."""
    model = model_of(f"""g (float[2] x, int64[2] at, bool c) => (float[K] y) {{
        q = If (c) <then_branch = t () => (float[A] a) {{ {then} }},
                    else_branch = e () => (float[B] b) {{ {other} }}>
        y = Neg(q) }}""")
    at = np.array([5, 6])
    program = compile_model(model)
    assert "If" in {plan.op_type for plan in program.explain()}
    check(model, {"x": floats(2), "at": at, "c": np.array(False)}, program=program, native=None)
    at = np.array([1, -1])
    check(model, {"x": floats(2), "at": at, "c": np.array(True)}, program=program, native=None)


def test_tiny_operations_that_only_a_condition_waits_for_run_in_numpy():
    """A partition costs more than they do; the same operations stay native where they go on."""
    model = model_of("""g (float x, float[N] z) => (float[N] y, float h) {
        two = Constant<value = float {2}>() h = Mul(x, two) k = Neg(x) r = Exp(k)
        zero = Constant<value = float {0}>() c = Greater(h, zero)
        q = If (c) <then_branch = t () => (float[N] a) { a = Relu(z) },
                    else_branch = e () => (float[N] b) { b = Tanh(z) }>
        y = Mul(q, r) }""")
    feeds = [{"x": np.array(x, np.float32), "z": floats(6)} for x in (0.5, -0.5)]
    program = agrees(model, *feeds)
    kernels = [plan.kernel for plan in program.explain() if plan.op_type == "Mul"]
    assert len(kernels) == 2
    assert "numpy Mul" in kernels
    (power,) = [plan for plan in program.explain() if plan.op_type == "Exp"]
    assert power.partition is not None


def test_weights_that_nodes_put_together_are_packed():
    """Exporters write the gates of recurrent cells so; without `fold` nobody has computed them."""
    weights = floats(4, 6, seed=3)
    model = model_of("""g (float[N, 4] x) => (float[N, 8] y)
        <int64[1] zero = {0}, int64[1] two = {2}, int64[1] six = {6}, int64[1] one = {1}> {
            a = Slice(w, zero, two, one) b = Slice(w, two, six, one) c = Concat<axis = 1>(b, a, a)
            d = MatMul(x, c) y = Relu(d) }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(weights, "w"))
    program = agrees(model, *({"x": floats(n, 4)} for n in (1, 3)))
    packed = [p.op_type for p in program.explain() if p.kernel == "packed with the weights"]
    assert sorted(set(packed)) == ["Concat", "Slice"]
