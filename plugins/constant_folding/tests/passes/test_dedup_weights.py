"""What `dedup-weights` merges, and how little it reads."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from folding_kit import check_bits, fold, parse, run

from narrowpass import Context
from narrowpass_constant_folding.passes.dedup_weights import DedupWeights
from narrowpass_ir.io import MappedTensor, load_model


def model(**weights):
    terms = " ".join(f"t_{name} = Cast <to = 1> ({name})" for name in weights)
    total = ", ".join(f"t_{name}" for name in weights)
    return parse(
        f"g (float[4] x) => (float[?] y) {{ {terms} s = Sum({total}) y = Add(x, s) }}",
        opset=19,
        initializers=weights,
    )


def names(proto):
    return [item.name for item in proto.graph.initializer]


A = np.arange(4, dtype=np.float32)


def test_equal_weights_are_merged_into_the_first():
    proto = model(a=A, b=A + 1, c=A.copy(), d=A.copy())
    after, _, ctx = run(DedupWeights(), proto)
    assert names(after) == ["a", "b"]
    assert ctx.counters["duplicates"] == 2
    check_bits(proto, after)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.zeros(4, np.float32), -np.zeros(4, np.float32)),
        (np.zeros(4, np.float32), np.zeros((4, 1), np.float32)),
        (np.zeros(4, np.float32), np.zeros(4, np.int32)),
        (np.zeros(4, np.float16), np.zeros(4, ml_dtypes.bfloat16)),
        (np.ones(4, np.int8), np.ones(4, np.uint8)),
        (np.zeros(0, np.float32), np.zeros((0, 2), np.float32)),
    ],
)
def test_weights_of_other_type_shape_or_sign_are_not_merged(one, other):
    proto = parse(
        "g (float[4] x) => (float[4] y, int64[?] p, int64[?] q)"
        "{ y = Abs(x) p = Shape(a) q = Shape(b) }",
        initializers={"a": one, "b": other},
    )
    assert names(run(DedupWeights(), proto)[0]) == ["a", "b"]


def test_nans_are_compared_by_bits():
    quiet = np.full(4, np.nan, np.float32)
    other = (quiet.view(np.uint32) | 1).view(np.float32)
    assert names(run(DedupWeights(), model(a=quiet, b=quiet.copy()))[0]) == ["a"]
    assert names(run(DedupWeights(), model(a=quiet, b=other))[0]) == ["a", "b"]


def test_strings():
    proto = parse(
        "g (string[2] x) => (bool[2] y, bool[2] z, bool[2] w)"
        "{ y = Equal(x, a) z = Equal(x, b) w = Equal(x, c) }",
        opset=19,
    )
    for name, texts in (("a", ["p", "q"]), ("b", ["p", "q"]), ("c", ["pq", ""])):
        proto.graph.initializer.append(
            onnx.helper.make_tensor(name, onnx.TensorProto.STRING, [2], [t.encode() for t in texts])
        )
    assert names(run(DedupWeights(), proto)[0]) == ["a", "c"]


def test_inputs_and_outputs_are_not_merged():
    proto = parse(
        "g (float[4] x, float[4] a) => (float[4] y, float[4] c) { y = Sum(x, a, b, d) }",
        initializers={"a": A, "b": A, "c": A, "d": A},
    )
    after, _, _ = run(DedupWeights(), proto)
    assert names(after) == ["a", "b", "c"]


def test_within_a_branch():
    proto = parse(
        """g (float[4] x, bool k) => (float[4] y) { y = If(k)
        <then_branch = t () => (float[4] p) <float[1] u = {3}, float[1] v = {3}>
            { r = Mul(x, u) p = Mul(r, v) },
         else_branch = e () => (float[4] q) { q = Neg(x) }> }"""
    )
    after, _, ctx = run(DedupWeights(), proto)
    assert ctx.counters["duplicates"] == 1
    check_bits(proto, after)


@pytest.fixture
def mapped(tmp_path):
    """A model whose weights are in a file: four large ones, two of them equal."""
    rng = np.random.default_rng(0)
    size = 1 << 18
    first = rng.standard_normal(size).astype(np.float32)
    last = first.copy()
    last[-1000] += 1  # between the places that are sampled
    weights = {"a": first, "b": rng.standard_normal(size).astype(np.float32), "c": first, "d": last}
    proto = parse(
        f"g (float[{size}] x) => (float[{size}] y) {{ y = Sum(x, a, b, c, d) }}",
        initializers=weights,
    )
    onnx.save(
        proto, tmp_path / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0
    )
    return load_model(tmp_path / "m.onnx")


def test_differing_weights_are_read_only_at_samples(mapped, monkeypatch):
    read = 0
    original = MappedTensor.read

    def count(self, offset, size):
        nonlocal read
        read += size
        return original(self, offset, size)

    def refuse(self):
        raise AssertionError("the weight was mapped")

    monkeypatch.setattr(MappedTensor, "read", count)
    monkeypatch.setattr(MappedTensor, "numpy", refuse)
    assert DedupWeights().run(mapped, Context()).modified
    assert list(mapped.graph.initializers) == ["a", "b", "d"]
    # samples of four, and two pairs that have equal samples
    assert read <= 4 * 1024 + 2 * 2 * (1 << 20)
    read = 0
    assert not DedupWeights().run(mapped, Context()).modified
    assert read <= 3 * 1024 + 2 * (1 << 20)


def test_tensors_at_one_file_offset_are_equal_unread(mapped, monkeypatch):
    tensor = mapped.graph.initializers["a"].const_value
    again = MappedTensor(tensor.file, tensor.offset, tensor.dtype, tensor.shape, "a")
    mapped.graph.initializers["c"].const_value = again
    sizes = []
    original = MappedTensor.read
    monkeypatch.setattr(
        MappedTensor, "read", lambda self, at, size: sizes.append(size) or original(self, at, size)
    )
    DedupWeights().run(mapped, Context())
    assert sizes.count(1 << 20) == 2  # a and d, which differ in one element
    assert list(mapped.graph.initializers) == ["a", "b", "d"]


def test_fused_weights_become_one():
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((4, 4, 1)).astype(np.float32)
    proto = parse(
        "g (float[1, 4, 5] x) => (float[?, ?, ?] y, float[?, ?, ?] z) {"
        " a = Conv(x, v) y = Mul(a, k) b = Neg(x) c = Conv(b, w) z = Mul(c, k) }",
        initializers={"v": weight, "w": weight.copy(), "k": np.float32(2)},
    )
    after, _, _ = fold(proto)
    assert len(after.graph.initializer) <= 3
    assert ir.from_proto(after) is not None
