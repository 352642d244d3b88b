"""Operators that reduce axes, normalize along them, or accumulate."""

from __future__ import annotations

import numpy as np

from narrowpass_testing.random_models._builder import Draft, Recipes

TABLE = Recipes()


@TABLE.operators(
    "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd "
    "ReduceSum ReduceSumSquare"
)
def _reduce(d: Draft) -> None:
    positive = d.schema.name == "ReduceLogSum"
    x = d.take(0 if d.chance(0.1) else 1, fits=lambda a: not positive or bool((a > 0).all()))
    d.maybe("keepdims", 0, 1)
    if x.ndim and d.chance(0.8):
        axes = d.random.sample(range(x.ndim), d.random.randint(1, x.ndim))
        d.axes([a - x.ndim if d.chance(0.3) and d.builder.opset >= 11 else a for a in axes])
    elif d.has_input(1) and d.chance(0.5):
        if d.chance(0.5):
            d.none()
        else:
            d.ints([])
        d.maybe("noop_with_empty_axes", 0, 1)


@TABLE.operators("ArgMax ArgMin")
def _arg(d: Draft) -> None:
    x = d.take(1, fits=lambda a: 0 not in a.shape)
    d.set("axis", d.axis(x.ndim))
    d.maybe("keepdims", 0, 1)
    d.maybe("select_last_index", 0, 1)


@TABLE.operators("Softmax LogSoftmax Hardmax")
def _softmax(d: Draft) -> None:
    x = d.take(1)
    if d.chance(0.8):
        d.set("axis", d.axis(x.ndim))


@TABLE.operators("CumSum CumProd")
def _cumulative(d: Draft) -> None:
    x = d.take(1)
    d.ints(d.axis(x.ndim))
    d.maybe("exclusive", 0, 1)
    d.maybe("reverse", 0, 1)


@TABLE.operators("TopK")
def _top_k(d: Draft) -> None:
    x = d.take(1, 4, fits=lambda a: a.size > 0 and np.unique(a).size == a.size)
    axis = d.axis(x.ndim)
    k = d.random.randint(1, x.shape[axis])
    if d.has_input(1):
        d.ints([k])
    else:
        d.set("k", k)
    d.set("axis", axis)
    d.maybe("largest", 0, 1)
    d.maybe("sorted", 1)
    d.outputs = 2


@TABLE.operators("LayerNormalization RMSNormalization")
def _layer_norm(d: Draft) -> None:
    x = d.take(1, fits=lambda a: 0 not in a.shape)
    axis = d.random.randrange(x.ndim)
    d.draw(x.shape[axis:])
    if d.has_input(2) and d.chance(0.6):
        d.draw(x.shape[axis:])
    d.set("axis", axis - x.ndim if d.chance(0.5) else axis)
    d.set("epsilon", d.pick(1e-2, 0.1))
    d.outputs = d.pick(1, 1, 1, 3) if d.schema.max_output == 3 else 1


@TABLE.operators("InstanceNormalization GroupNormalization BatchNormalization")
def _channel_norm(d: Draft) -> None:
    name = d.schema.name
    x = d.take(3 if name != "BatchNormalization" else 1, 5, fits=lambda a: 0 not in a.shape)
    channels = x.shape[1] if x.ndim > 1 else 1
    count = channels
    if name == "GroupNormalization":
        groups = d.pick(*[n for n in range(1, channels + 1) if channels % n == 0])
        d.set("num_groups", groups)
        count = groups if d.schema.since_version < 21 else channels
    d.draw((count,))
    d.draw((count,))
    if name == "BatchNormalization":
        d.draw((channels,))
        d.positive((channels,))
        d.maybe("momentum", 0.9)
    d.set("epsilon", d.pick(1e-3, 1e-2, 0.1))


@TABLE.operators("LpNormalization MeanVarianceNormalization")
def _norm(d: Draft) -> None:
    four = d.schema.name == "MeanVarianceNormalization"
    x = d.take(4 if four else 1, 4, fits=lambda a: 0 not in a.shape)
    if not four:
        d.set("axis", d.axis(x.ndim))
        d.maybe("p", 1, 2)
    elif d.chance(0.5):
        d.set("axes", sorted(d.random.sample(range(4), d.random.randint(1, 3))))


@TABLE.operators("LRN")
def _lrn(d: Draft) -> None:
    d.take(4, 4, fits=lambda a: 0 not in a.shape)
    d.set("size", d.pick(1, 3, 5))
    d.maybe("alpha", 0.001, 0.1)
    d.maybe("beta", 0.5, 0.75)
    d.maybe("bias", 1.0, 2.0)


@TABLE.operators("NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss")
def _loss(d: Draft) -> None:
    n, c = d.pick(1, 3), d.pick(2, 5)
    inner = d.pick((), (), (3,), (2, 2))
    d.draw((n, c, *inner), constant=0.1)
    d.ints(d.numbers.integers(0, c, (n, *inner)), constant=0.2)
    if d.chance(0.5):
        d.positive((c,))
    d.maybe("reduction", "none", "sum", "mean")
    d.maybe("ignore_index", 0, -1)
    if d.schema.name == "SoftmaxCrossEntropyLoss":
        d.outputs = d.pick(1, 2)


@TABLE.operators("Einsum")
def _einsum(d: Draft) -> None:
    letters = {c: d.pick(1, 2, 3, 5) for c in "abcd"}
    left = d.pick("ab", "abc", "ba", "a", "abb"[:2])
    right = d.pick("bc", "cb", "b", "bd", "")
    free = "".join(sorted((set(left) | set(right)) - ({"b"} if d.chance(0.7) else set())))
    d.draw([letters[c] for c in left], constant=0.1)
    if right:
        d.draw([letters[c] for c in right], constant=0.5)
    text = f"{left},{right}" if right else left
    d.set("equation", text if d.chance(0.2) else f"{text}->{free}")


@TABLE.operators("Det")
def _det(d: Draft) -> None:
    n = d.pick(1, 2, 3)
    d.draw((*d.pick((), (2,), (1, 3)), n, n), constant=0.1)
