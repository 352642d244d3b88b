"""Random graphs of quantized operators: each is at most one step off onnx's evaluator."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from qdq_graph import QdqGraph
from qdq_kit import off_by

pytestmark = pytest.mark.once


class Maker:
    """Puts a random graph of images together."""

    def __init__(self, seed: int) -> None:
        self.graph = QdqGraph(seed, unsigned=bool(seed % 2))
        self.rng = self.graph.rng
        self.channels = int(self.rng.integers(1, 40))
        self.size = int(self.rng.integers(3, 14))
        shape = [int(self.rng.integers(1, 3)), self.channels, self.size, self.size]
        self.feeds = {"x": self.rng.standard_normal(shape).astype(np.float32)}
        self.batch = shape[0]
        self.value = self.quantized(self.graph.input(shape), 1.0)

    def quantized(self, value: str, largest: float) -> str:
        """Quantize so that numbers up to about `largest` fit, and some do not."""
        scale = float(np.float32(largest * 2.0 ** self.rng.uniform(-1, 1) / 64))
        self.scale, self.zero_point = scale, int(self.rng.integers(-128, 128))
        return self.graph.quantize(value, self.scale, self.zero_point)

    def activated(self, value: str) -> str:
        kind = self.rng.integers(4)
        if kind == 0:
            return self.graph.node("Relu", value)
        if kind == 1:
            bounds = sorted(self.rng.uniform(-3, 3, 2).astype(np.float32))
            return self.graph.node("Clip", value, *(self.graph.constant(b) for b in bounds))
        return value

    def convolution(self) -> None:
        depthwise = self.rng.integers(3) == 0
        groups = self.channels if depthwise else 1
        outputs = self.channels if depthwise else int(self.rng.integers(1, 40))
        side = int(self.rng.choice([1, 3, 5]))
        kernel = (outputs, self.channels // groups, side, side)
        axis = 0 if self.rng.integers(4) else None
        operands = [self.value, self.graph.weight(kernel, axis)]
        if self.rng.integers(2):
            bias = self.rng.standard_normal(outputs).astype(np.float32)
            operands.append(self.graph.constant(bias))
        pads = [side // 2] * 4
        y = self.graph.node("Conv", *operands, group=groups, pads=pads)
        self.channels = outputs
        self.value = self.quantized(self.activated(y), 1.5)

    def sum(self) -> None:
        other = self.graph.quantize(
            self.graph.node("Neg", self.value), self.scale * 1.5, -self.zero_point // 2
        )
        y = self.graph.node(str(self.rng.choice(["Add", "Sub", "Mul"])), self.value, other)
        self.value = self.quantized(self.activated(y), 2.0)

    def function(self) -> None:
        kind = str(self.rng.choice(["Sigmoid", "Tanh", "LeakyRelu", "HardSwish", "Gelu", "Abs"]))
        self.value = self.quantized(self.graph.node(kind, self.value), 1.0)

    def concatenation(self) -> None:
        other = self.graph.quantize(self.graph.node("Relu", self.value), self.scale * 0.7, -128)
        self.value = self.graph.node("Concat", self.value, other, axis=1)
        self.channels *= 2
        self.value = self.graph.quantize(self.value, self.scale, self.zero_point)

    def pooling(self) -> None:
        self.value = self.graph.node("MaxPool", self.value, kernel_shape=[3, 3], pads=[1] * 4)
        if self.rng.integers(2):
            self.value = self.graph.quantize(self.value, self.scale, self.zero_point)

    def padding(self) -> None:
        pads = self.graph.constant(np.int64([0, 0, 1, 0, 0, 0, 0, 1]))
        y = self.graph.node("Pad", self.value, pads)
        self.size += 1
        self.value = self.graph.quantize(y, self.scale, self.zero_point)

    def turn(self) -> None:
        self.value = self.graph.node("Transpose", self.value, perm=[0, 1, 3, 2])

    def finish(self) -> None:
        if self.rng.integers(2):
            y = self.graph.node("GlobalAveragePool", self.value)
            y = self.graph.node("Flatten", self.quantized(y, 0.5))
            count = self.channels
        else:
            y = self.graph.node("Flatten", self.value)
            count = self.channels * self.size**2
        weight = self.graph.weight((count, 7), 1 if self.rng.integers(2) else None)
        y = self.graph.node("MatMul", y, weight)
        self.graph.output(y if self.rng.integers(2) else self.quantized(y, 2.0))

    def build(self) -> None:
        parts = [
            *(self.convolution, self.convolution, self.sum, self.function, self.concatenation),
            *(self.pooling, self.padding, self.turn),
        ]
        for _ in range(int(self.rng.integers(2, 8))):
            if self.channels < 100:
                parts[self.rng.integers(len(parts))]()
        self.finish()


def campaign(seeds: range) -> Counter[int]:
    steps: Counter[int] = Counter()
    for seed in seeds:
        maker = Maker(seed)
        maker.build()
        found = off_by(maker.graph.model(), maker.feeds, threads=1 + seed % 2)
        assert set(found) <= {0, 1}, f"seed {seed}"
        steps += found
    assert steps[1] <= 0.002 * sum(steps.values())
    return steps


def test_random_graphs():
    campaign(range(25))


@pytest.mark.long
def test_many_random_graphs():
    steps = campaign(range(3000))
    print(f"{steps[1]} of {sum(steps.values())} elements are one step off")
