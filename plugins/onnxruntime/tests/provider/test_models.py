"""Sessions with the provider return what onnxruntime's own provider for CPUs returns."""

import mmap

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from provider_kit import (
    RNG,
    check,
    cpu_session,
    drawn,
    graph,
    our_session,
    perceptron,
    settings,
    value_info,
)

import narrowpass_onnxruntime
from narrowpass_onnxruntime.provider.registration import NAME


def test_a_perceptron_runs_without_python_after_its_first_run():
    model = perceptron()
    ours, theirs = our_session(model), cpu_session(model)
    (group,) = ours.groups
    check(ours, theirs, {"x": drawn(3, 64)}, runs=4)
    assert group.counts == (1, 3)


def test_batches_of_other_sizes():
    model = perceptron()
    ours, theirs = our_session(model), cpu_session(model)
    for rows in (1, 7, 1, 0, 64, 3):
        check(ours, theirs, {"x": drawn(rows, 64)})


def convolutional():
    return graph(
        """g (float[N,3,H,W] x) => (float[N,10] y) {
        a = Conv<kernel_shape=[3,3], pads=[1,1,1,1], strides=[2,2]>(x, k)
        b = Relu(a)
        c = MaxPool<kernel_shape=[2,2], strides=[2,2]>(b)
        d = Conv<kernel_shape=[1,1]>(c, l)
        e = HardSwish(d)
        f = GlobalAveragePool(e)
        h = Flatten(f)
        y = MatMul(h, w) }""",
        k=drawn(16, 3, 3, 3, scale=0.2),
        l=drawn(32, 16, 1, 1, scale=0.2),
        w=drawn(32, 10, scale=0.2),
    )


def test_a_convolutional_network_of_dynamic_size():
    model = convolutional()
    ours, theirs = our_session(model), cpu_session(model)
    for size in ((1, 3, 32, 32), (2, 3, 40, 24), (1, 3, 32, 32)):
        check(ours, theirs, {"x": drawn(*size)})


def test_sizes_that_differ_under_one_name():
    """onnxruntime runs them: exporters write ``?`` for whatever is not known."""
    model = graph("g (float[N,N] x) => (float[N,N] y) { a = Relu(x)  y = Sigmoid(a) }")
    ours, theirs = our_session(model), cpu_session(model)
    assert ours.groups
    check(ours, theirs, {"x": drawn(2, 5)})


def transformer(width=32, heads=4):
    each = width // heads
    return graph(
        f"""g (int64[B,T] ids, float[B,T] mask) => (float[B,T,{width}] y) {{
        x = Gather(table, ids)
        n = LayerNormalization<axis=-1>(x, s, z)
        q = MatMul(n, wq)  k = MatMul(n, wk)  v = MatMul(n, wv)
        qr = Reshape(q, split)  kr = Reshape(k, split)  vr = Reshape(v, split)
        qt = Transpose<perm=[0,2,1,3]>(qr)
        kt = Transpose<perm=[0,2,3,1]>(kr)
        vt = Transpose<perm=[0,2,1,3]>(vr)
        a = MatMul(qt, kt)  b = Mul(a, scale)
        one = Unsqueeze(mask, axes)
        c = Add(b, one)  p = Softmax<axis=-1>(c)
        o = MatMul(p, vt)  ot = Transpose<perm=[0,2,1,3]>(o)  r = Reshape(ot, join)
        w = MatMul(r, wo)  y = Add(w, x) }}""",
        table=drawn(50, width),
        s=np.ones(width, np.float32),
        z=np.zeros(width, np.float32),
        wq=drawn(width, width, scale=0.2),
        wk=drawn(width, width, scale=0.2),
        wv=drawn(width, width, scale=0.2),
        wo=drawn(width, width, scale=0.2),
        split=np.array([0, 0, heads, each]),
        join=np.array([0, 0, width]),
        scale=np.array(each**-0.5, np.float32),
        axes=np.array([1, 2]),
    )


def test_a_transformer_block_with_int64_inputs():
    model = transformer()
    ours, theirs = our_session(model), cpu_session(model)
    for batch, length in ((1, 5), (2, 9), (1, 5)):
        mask = np.where(RNG.random((batch, length)) < 0.2, -1e9, 0.0).astype(np.float32)
        mask[:, 0] = 0
        ids = RNG.integers(0, 50, (batch, length))
        check(ours, theirs, {"ids": ids, "mask": mask})


def test_nodes_without_a_kernel_stay_in_the_middle():
    """Strings are for onnxruntime; a group lies before them and one behind."""
    model = graph(
        """g (float[N,16] x) => (float[N,16] y, string[N,16] s) {
        a = MatMul(x, w)  b = Relu(a)  c = Add(b, b)  s = Cast<to=8>(c)
        d = Cast<to=1>(s)
        e = MatMul(d, w)  f = Sigmoid(e)  y = Add(f, c) }""",
        w=drawn(16, 16, scale=0.3),
    )
    ours, theirs = our_session(model), cpu_session(model)
    assert len(ours.groups) == 2
    feeds = {"x": drawn(2, 16)}
    expected = theirs.run(["y"], feeds)[0]
    for _ in range(3):
        # The text of a float32 has fewer digits than it has.
        np.testing.assert_allclose(ours.session.run(["y"], feeds)[0], expected, rtol=0, atol=1e-4)


def test_a_group_is_not_closed_to_a_cycle():
    """`c` needs `s`, which only onnxruntime computes from `b`: `b` and `c` are no group."""
    model = graph(
        """g (float[N,8] x) => (float[N,8] y) {
        b = MatMul(x, w)  t = Cast<to=8>(b)  s = Cast<to=1>(t)
        m = MatMul(s, w)  y = Add(m, b) }""",
        w=drawn(8, 8, scale=0.3),
    )
    ours, theirs = our_session(model), cpu_session(model)
    assert len(ours.groups) == 2
    # As above: text.
    check(ours, theirs, {"x": drawn(2, 8)}, tolerance=1e-4)


def test_float16():
    model = graph(
        """g (float16[N,32] x) => (float16[N,32] y) {
        a = MatMul(x, w)  b = Relu(a)  y = MatMul(b, w) }""",
        w=drawn(32, 32, scale=0.2).astype(np.float16),
    )
    ours, theirs = our_session(model), cpu_session(model)
    # Both round results to float16, of 2^-11 relative precision, two layers deep.
    check(ours, theirs, {"x": drawn(4, 32).astype(np.float16)}, tolerance=4e-3)


def test_bfloat16_is_cast_within_a_group():
    model = graph(
        """g (float[N,32] x) => (float[N,32] y) {
        a = Cast<to=16>(x)  b = Cast<to=1>(a)  y = Relu(b) }"""
    )
    ours = our_session(model)
    x = drawn(4, 32)
    expected = np.maximum(x.astype(ml_dtypes.bfloat16).astype(np.float32), 0)
    for _ in range(3):
        np.testing.assert_array_equal(ours.run({"x": x})[0], expected)


def quantized():
    scales = {"sx": 0.05, "sw": 0.01, "sy": 0.2}
    zero = {"zx": 0, "zw": 0, "zy": 0}
    return graph(
        """g (float[N,64] x) => (float[N,32] y) {
        q = QuantizeLinear(x, sx, zx)  d = DequantizeLinear(q, sx, zx)
        v = DequantizeLinear(w, sw, zw)
        m = MatMul(d, v)
        r = QuantizeLinear(m, sy, zy)  y = DequantizeLinear(r, sy, zy) }""",
        w=RNG.integers(-127, 128, (64, 32)).astype(np.int8),
        **{name: np.array(value, np.float32) for name, value in scales.items()},
        **{name: np.array(value, np.int8) for name, value in zero.items()},
    )


def test_quantized_by_q_and_dq_nodes():
    model = quantized()
    ours, theirs = our_session(model), cpu_session(model)
    feeds = {"x": drawn(5, 64)}
    expected = theirs.run(None, feeds)[0]
    for _ in range(3):
        found = ours.run(feeds)[0]
        steps = np.abs(found - expected) / 0.2
        # A sum that lies between two steps may be rounded to either.
        assert steps.max() <= 1.001
        assert (steps > 0.5).mean() < 0.02


def test_scalars_and_several_outputs():
    """The scale of DynamicQuantizeLinear has no dimensions."""
    model = graph(
        """g (float[N] x) => (uint8[N] y, float[] s, uint8[] z) {
        y, s, z = DynamicQuantizeLinear(x) }"""
    )
    ours, theirs = our_session(model), cpu_session(model)
    assert ours.groups
    check(ours, theirs, {"x": np.array([0, 2, -3, -2.5, 1.34, 0.5], np.float32)})


def test_optional_inputs_that_are_left_out():
    model = graph(
        """g (float[N,8] x) => (float[N,8] y) { a = Clip(x, , high)  y = Relu(a) }""",
        high=np.array(0.5, np.float32),
    )
    ours, theirs = our_session(model), cpu_session(model)
    assert ours.groups
    check(ours, theirs, {"x": drawn(3, 8)})


def test_an_output_that_is_an_input_or_a_constant():
    model = graph(
        """g (float[N,8] x) => (float[N,8] y, float[8] c, float[N,8] z) {
        y = Identity(x)  c = Identity(w)  z = Relu(x) }""",
        w=drawn(8),
    )
    ours, theirs = our_session(model), cpu_session(model)
    check(ours, theirs, {"x": drawn(3, 8)})


def test_bodies_of_if():
    """Groups within branches read values of the outer graph; both branches use the same names."""

    def branch(name, weight):
        nodes = [
            helper.make_node("MatMul", ["x", weight], ["a"]),
            helper.make_node("Relu", ["a"], ["r"]),
        ]
        return helper.make_graph(nodes, name, [], [value_info("r", ["N", 8])])

    node = helper.make_node(
        "If", ["c"], ["y"], then_branch=branch("t", "w"), else_branch=branch("e", "v")
    )
    whole = helper.make_graph(
        [node],
        "g",
        [value_info("x", ["N", 8]), value_info("c", [], TensorProto.BOOL)],
        [value_info("y", ["N", 8])],
        [numpy_helper.from_array(drawn(8, 8), name) for name in "wv"],
    )
    model = helper.make_model(whole, ir_version=10, opset_imports=[helper.make_opsetid("", 21)])
    ours, theirs = our_session(model), cpu_session(model)
    assert len(ours.groups) == 2
    for condition in (True, False, True):
        check(ours, theirs, {"x": drawn(2, 8), "c": np.array(condition)})


def test_not_a_number_stays():
    model = perceptron()
    ours, theirs = our_session(model), cpu_session(model)
    x = drawn(2, 64)
    x[0, 3] = np.nan
    check(ours, theirs, {"x": x})


def test_external_weights_of_a_file(tmp_path):
    model = perceptron(inner=512)
    path = tmp_path / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights", size_threshold=0)
    ours = our_session(str(path))
    check(ours, cpu_session(onnx.load(path)), {"x": drawn(2, 64)})


def test_devices_are_found_and_chosen():
    narrowpass_onnxruntime.register()
    devices = [each for each in onnxruntime.get_ep_devices() if each.ep_name == NAME]
    assert len(devices) == 1
    options = settings()
    options.add_provider_for_devices(devices, {"threads": "1"})
    model = perceptron()
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    assert NAME in session.get_providers()
    x = drawn(2, 64)
    theirs = cpu_session(model).run(None, {"x": x})[0]
    np.testing.assert_allclose(session.run(None, {"x": x})[0], theirs, rtol=0, atol=1e-4)


def test_results_are_written_where_the_caller_wants_them():
    model = perceptron()
    ours, theirs = our_session(model), cpu_session(model)
    x = drawn(2, 64)
    out = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros((2, 64), np.float32))
    binding = ours.session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_ortvalue_output("y", out)
    expected = theirs.run(None, {"x": x})[0]
    for _ in range(3):
        out.update_inplace(np.zeros((2, 64), np.float32))
        ours.session.run_with_iobinding(binding)
        np.testing.assert_allclose(out.numpy(), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("shape", [(1, 64), (64,)])
def test_feeds_at_the_end_of_a_page(shape):
    """Kernels read some bytes beyond a feed: those after the last page are not there."""
    pages = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    raw = np.frombuffer(pages, np.uint8)
    size = int(np.prod(shape)) * 4
    feed = raw[2 * mmap.PAGESIZE - size :].view(np.float32).reshape(shape)
    feed[...] = drawn(*shape)
    dims = "N,64" if len(shape) == 2 else "64"
    model = graph(f"g (float[{dims}] x) => (float[{dims}] y) {{ a = Relu(x)  y = Sigmoid(a) }}")
    ours, theirs = our_session(model), cpu_session(model)
    check(ours, theirs, {"x": feed})
