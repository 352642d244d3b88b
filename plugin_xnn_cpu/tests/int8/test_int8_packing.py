"""What is packed for our kernels of int8, and where they are taken."""

from __future__ import annotations

import gc

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cache_kit import compiled, saved
from int8_kernels_kit import bytes_of, code, run, scales_of
from qdq_graph import QdqGraph
from qdq_kit import off_by

from narrowpass.errors import BackendError
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own import int8_convolution
from narrowpass_xnn_cpu.native.problems import quantization
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, Requantized, UnfitError
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.table import create_convolution
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache
from narrowpass_xnn_cpu.native.xnnpack import convolution as xnn_convolution

__all__ = ["code"]  # a fixture that all tests of this module have


def weights_of(seed, identity):
    rng = np.random.default_rng(seed)
    kernel = bytes_of(rng, (20, 3, 3, 5), False, -127)
    scales = scales_of(rng, 20, 45)
    bias = rng.integers(-99, 99, 20).astype(np.int32)
    return (
        Quantized(
            Weight.of(kernel, identity and f"{identity}/k"),
            Weight.of(scales, identity and f"{identity}/s"),
            None,
            0,
        ),
        Weight.of(bias, identity and f"{identity}/b"),
    )


def test_sessions_share_packed_weights():
    requantized = Requantized(Quantization(0.5, 1), Quantization(0.25, 2))
    other = Requantized(Quantization(0.5, 1), Quantization(0.125, 2))
    cache = WeightsCache()
    with cache.begin() as first:
        one = int8_convolution.CONVOLUTION.create(
            Convolution(*weights_of(0, "a"), ConvAttributes(), requantized), first
        )
        same = int8_convolution.CONVOLUTION.create(
            Convolution(*weights_of(0, "a"), ConvAttributes((1, 1, 1, 1)), requantized), first
        )
    assert one.packed == same.packed
    assert (first.counts.misses, first.counts.hits) == (1, 1)
    with cache.begin() as second:
        again = int8_convolution.CONVOLUTION.create(
            Convolution(*weights_of(0, "a"), ConvAttributes(), requantized), second
        )
        scaled = int8_convolution.CONVOLUTION.create(
            Convolution(*weights_of(0, "a"), ConvAttributes(), other), second
        )
        private = int8_convolution.CONVOLUTION.create(
            Convolution(*weights_of(0, ""), ConvAttributes(), requantized), second
        )
    assert one.packed == again.packed
    assert one.packed != scaled.packed
    assert [entry.origin for entry in second.entries()] == [
        "shared",
        "packed",
        "its content has no name",
    ]
    x = bytes_of(np.random.default_rng(1), (1, 6, 6, 5), False)
    for operator in (one, again, private):
        assert operator.reshape(x.shape, shared(1)) == (4, 4)
    results = [run(o, x, (1, 4, 4, 20), np.int8, 1) for o in (one, again, private)]
    assert all((result == results[0]).all() for result in results)


def test_a_hit_reads_no_weights():
    def unread():
        raise AssertionError("weights were read")

    kernel, bias = weights_of(0, "a")
    requantized = Requantized(Quantization(0.5, 1), Quantization(0.25, 2))
    cache = WeightsCache()
    with cache.begin() as first:
        int8_convolution.CONVOLUTION.create(
            Convolution(kernel, bias, ConvAttributes(), requantized), first
        )

    def hollow(weight):
        return Weight(weight.shape, weight.dtype, weight.identity, unread)

    stored = Quantized(hollow(kernel.integers), hollow(kernel.scale), None, 0)
    with cache.begin() as second:
        int8_convolution.CONVOLUTION.create(
            Convolution(stored, hollow(bias), ConvAttributes(), requantized), second
        )
    assert second.counts.hits == 1


def test_operands_that_do_not_fit_are_refused(monkeypatch):
    kernel, bias = weights_of(0, "")
    requantized = Requantized(Quantization(0.5, 1), Quantization(0.25, 2))
    wrong = Quantized(
        Weight.of(np.full((4, 1, 1, 2), -128, np.int8)), Weight.of(np.ones(1, "f4")), None, 0
    )
    monkeypatch.setattr(quantization, "LEAST_WEIGHT", -127)
    with pytest.raises(UnfitError, match="-128"):
        int8_convolution.CONVOLUTION.create(Convolution(wrong, None, ConvAttributes(), requantized))
    with pytest.raises(BackendError, match="groups"):
        int8_convolution.CONVOLUTION.create(
            Convolution(kernel, bias, ConvAttributes(groups=3), requantized)
        )
    with pytest.raises(BackendError, match="bias"):
        int8_convolution.CONVOLUTION.create(
            Convolution(kernel, Weight.of(np.zeros(3, np.int32)), ConvAttributes(), requantized)
        )
    large = Requantized(Quantization(3e38, 0), Quantization(1e-30, 0))
    with pytest.raises(UnfitError, match="output scale is"):
        int8_convolution.CONVOLUTION.create(Convolution(kernel, bias, ConvAttributes(), large))
    operator = int8_convolution.CONVOLUTION.create(
        Convolution(kernel, bias, ConvAttributes(), requantized)
    )
    with pytest.raises(BackendError, match="5 channels got 6"):
        operator.reshape((1, 8, 8, 6), shared(1))
    with pytest.raises(BackendError, match="larger than the padded input"):
        operator.reshape((1, 2, 8, 5), shared(1))


def quantized_network():
    """Build a model that runs each of the plugin's own int8 kernels."""
    graph = QdqGraph()
    x = graph.quantize(graph.input([1, 3, 11, 11]), 0.03, 3)
    stem = graph.node("Conv", x, graph.weight((32, 3, 3, 3), 0), strides=[2, 2])
    y = graph.quantize(graph.node("Relu", stem), 0.05, -128)
    y = graph.quantize(graph.node("Conv", y, graph.weight((16, 32, 3, 3), 0)), 0.1, 0)
    deep = graph.weight((16, 1, 3, 3), 0)
    y = graph.quantize(graph.node("Conv", y, deep, group=16), 0.1, -5)
    y = graph.quantize(graph.node("Flatten", y), 0.1, -5)
    graph.output(graph.node("MatMul", y, graph.weight((16, 9), 1)))
    return graph.model()


def test_packed_weights_are_found_in_the_cache_file(monkeypatch, tmp_path):
    """The second load packs nothing."""
    monkeypatch.setitem(target.OVERRIDES, "int8_is_own", True)
    model = quantized_network()
    x = np.random.default_rng(0).standard_normal((1, 3, 11, 11)).astype(np.float32)
    steps = off_by(model, {"x": x})
    assert set(steps) <= {0, 1}
    assert steps[1] <= 2
    whole = onnx.shape_inference.infer_shapes(ir.to_proto(model))
    bundle = saved(tmp_path / "b.narrow", main=whole)
    results, packs = [], []
    for _ in range(2):
        program = compiled(bundle, tmp_path / "cache")
        packs.append(program.stats()["weights"]["packs"])
        results.append(program.run({"x": x}))
        del program
        gc.collect()
    assert packs == [4, 0]
    for name, first in results[0].items():
        np.testing.assert_array_equal(first, results[1][name])


def test_own_and_xnnpack_kernels_return_the_same_bytes(monkeypatch):
    kernel, bias = weights_of(0, "")
    requantized = Requantized(Quantization(0.5, 1), Quantization(0.25, 2))
    operators = []
    for ours in (True, False):
        monkeypatch.setitem(target.OVERRIDES, "int8_is_own", ours)
        operators.append(
            create_convolution(Convolution(kernel, bias, ConvAttributes(), requantized))
        )
    assert operators[0].kernel is int8_convolution.CONVOLUTION
    assert operators[1].kernel is xnn_convolution.CONVOLUTION_S8
    x = bytes_of(np.random.default_rng(1), (2, 7, 6, 5), False)
    for operator in operators:
        assert operator.reshape(x.shape, shared(1)) == (5, 4)
    first, second = (run(operator, x, (2, 5, 4, 20), np.int8, 1) for operator in operators)
    np.testing.assert_array_equal(first, second)
