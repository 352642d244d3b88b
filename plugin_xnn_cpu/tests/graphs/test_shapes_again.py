"""Shapes that come again: their plans are taken up again, with the bits of a fresh program."""

from __future__ import annotations

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator
from xnn_kit import compile_model

from narrowpass_planning.plan.bindings import MOST
from narrowpass_xnn_cpu.lowered.op import PackedStep

RNG = np.random.default_rng(11)
TOLERANCE = 1e-4
"""Of elements of about 1, accumulated in float32 over at most 72 terms in another order."""


def model(text, **constants):
    """Parse a graph; `constants` are float32 initializers, or int64."""
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 18]> {text}')
    proto.graph.initializer.extend(
        numpy_helper.from_array(value, name) for name, value in constants.items()
    )
    return proto


def drawn(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def text_model():
    """Heads by Shape and Reshape, a softmax, and matmuls."""
    return model(
        """g (float[n, s, 16] x) => (float[n, s, 16] y) {
        shape = Shape(x)
        lead = Slice(shape, zero, two)
        heads = Concat<axis=0>(lead, split)
        q = MatMul(x, w)
        r = Reshape(q, heads)
        t = Transpose<perm=[0, 2, 1, 3]>(r)
        k = Transpose<perm=[0, 2, 3, 1]>(r)
        scores = MatMul(t, k)
        p = Softmax(scores)
        o = MatMul(p, t)
        b = Transpose<perm=[0, 2, 1, 3]>(o)
        f = Reshape(b, shape)
        y = MatMul(f, v)
        }""",
        w=drawn(16, 16) / 4, v=drawn(16, 16) / 4,
        zero=np.array([0]), two=np.array([2]), split=np.array([4, 4]),
    )  # fmt: skip


def image_model():
    """Convolutions of both kinds, pools, a resize and a sum: operators of ours and of XNNPACK."""
    return model(
        """g (float[1, 3, h, w] x) => (float[1, 8, a, b] y, float[1, 8, 1, 1] z) {
        c = Conv<pads=[1, 1, 1, 1]>(x, k)
        r = Relu(c)
        d = Conv<pads=[1, 1, 1, 1], group=8>(r, e)
        m = MaxPool<kernel_shape=[2, 2], strides=[2, 2]>(d)
        u = Resize<mode="linear">(m, none, scales)
        s = Softmax<axis=1>(u)
        y = Mul(s, u)
        z = GlobalAveragePool(y)
        }""",
        k=drawn(8, 3, 3, 3) / 5, e=drawn(8, 1, 3, 3) / 3,
        none=drawn(0), scales=np.array([1, 1, 2, 2], np.float32),
    )  # fmt: skip


def images(size):
    return {"x": drawn(1, 3, size, size + 2)}


def texts(size):
    return {"x": drawn(1 + size % 2, size, 16)}


def pairs(size):
    return {"x": drawn(size, 8), "u": drawn(size, 8)}


def pair_model():
    """Each step grows with its inputs where they alone change."""
    return model(
        """g (float[n, 8] x, float[n, 8] u) => (float[n, 8] y) {
        a = Add(x, u)  t = Tanh(a)  m = MatMul(t, w)  y = Sub(m, x) }""",
        w=drawn(8, 8) / 3,
    )


CASES = [(text_model, texts), (image_model, images), (pair_model, pairs)]


@pytest.fixture
def sized(monkeypatch):
    """Return a list with an entry for each step that is sized."""
    found = []
    size = PackedStep.size

    def watched(self, shapes, sizing):
        found.append(self.name)
        return size(self, shapes, sizing)

    monkeypatch.setattr(PackedStep, "size", watched)
    return found


@pytest.mark.parametrize(("build", "feeds"), CASES)
@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_those_of_a_fresh_program(build, feeds, threads):
    proto = build()
    evaluator = ReferenceEvaluator(proto)
    order = [8, 12, 8, 30, 12, 8, 30, 8]
    with compile_model(proto, threads=threads) as program:
        for size in order:
            given = feeds(size)
            found = program.run(given)
            for one, other in zip(found.values(), evaluator.run(None, given), strict=True):
                np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)
            with compile_model(proto, threads=threads) as fresh:
                for one, other in zip(found.values(), fresh.run(given).values(), strict=True):
                    np.testing.assert_array_equal(one, other)


def test_steps_of_ours_are_sized_once_for_each_shape(sized):
    with compile_model(text_model()) as program:
        for size in (8, 12):
            program.run(texts(size))
        whole, sized[:] = len(sized), []
        for size in (8, 12, 8, 12):
            program.run(texts(size))
        steps = [step for partition in program.partitions["main"] for step in partition.steps]
        kernels = {step.name: step.kernel for step in steps}
    assert whole == 2 * len(steps)
    assert all(kernels[name].startswith("xnn ") for name in sized), sized


def test_more_shapes_than_are_kept(sized):
    """Those used last are kept: the first of a long list is sized again, the last is not."""
    proto = text_model()
    evaluator = ReferenceEvaluator(proto)
    with compile_model(proto) as program:
        for size in range(1, MOST + 4):
            program.run({"x": drawn(1, size, 16)})
        for size, again in ((MOST + 3, False), (1, True)):
            given = {"x": drawn(1, size, 16)}
            del sized[:]
            (found,) = program.run(given).values()
            steps = [step for part in program.partitions["main"] for step in part.steps]
            kernels = {step.name: step.kernel for step in steps}
            ours = [name for name in sized if not kernels[name].startswith("xnn ")]
            assert bool(ours) == again
            np.testing.assert_allclose(found, evaluator.run(None, given)[0], rtol=0, atol=TOLERANCE)


def test_a_value_that_differs_is_not_taken_for_the_one_before():
    """The same shapes with another value from shapes elsewhere: the end of a slice."""
    proto = model(
        """g (float[n, 8] x, float[m, 2] other) => (float[k, 8] y) {
        s = Shape<start=0, end=1>(other)
        c = Slice(x, zero, s, zero)
        r = MatMul(c, w)
        y = Softmax(r) }""",
        w=drawn(8, 8), zero=np.array([0]),
    )  # fmt: skip
    evaluator = ReferenceEvaluator(proto)
    with compile_model(proto) as program:
        for rows in (3, 5, 3, 5, 4, 3):
            given = {"x": drawn(6, 8), "other": drawn(rows, 2)}
            (found,) = program.run(given).values()
            np.testing.assert_allclose(found, evaluator.run(None, given)[0], rtol=0, atol=TOLERANCE)


def test_a_sequence_that_grows_a_second_time():
    """A decoder without states: one more row in each run, and again from the first."""
    proto = model(
        """g (float[1, 8] x, float[p, 8] past) => (float[q, 8] present, float[1, 8] y) {
        present = Concat<axis=0>(past, x)
        t = Transpose<perm=[1, 0]>(present)
        s = MatMul(x, t)
        p = Softmax(s)
        y = MatMul(p, present) }"""
    )
    evaluator = ReferenceEvaluator(proto)
    with compile_model(proto) as program:
        for length in (20, 20, MOST + 20):
            past = drawn(0, 8)
            for _ in range(length):
                given = {"x": drawn(1, 8), "past": past}
                found = program.run(given)
                expected = evaluator.run(None, given)
                for one, other in zip(found.values(), expected, strict=True):
                    np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)
                past = found["present"]


def test_memory_is_that_of_the_largest_shape_that_is_kept():
    with compile_model(text_model()) as alone, compile_model(text_model()) as program:
        alone.run({"x": drawn(2, 64, 16)})
        for size in (8, 64, 12, 8):
            program.run({"x": drawn(2, size, 16)})
        assert program.stats()["scratch_bytes"] == alone.stats()["scratch_bytes"]
        for size in range(1, MOST + 1):  # the large one is forgotten
            program.run({"x": drawn(size, 1, 16)})
        assert program.stats()["scratch_bytes"] < alone.stats()["scratch_bytes"]
