"""Numpy kernels: elementwise operators, reductions, normalizations, matmuls and losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx_ir as ir
from onnx import numpy_helper

from narrowpass_planning.graph.op import Op

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]

FLOAT8 = frozenset(
    {
        ir.DataType.FLOAT8E4M3FN,
        ir.DataType.FLOAT8E4M3FNUZ,
        ir.DataType.FLOAT8E5M2,
        ir.DataType.FLOAT8E5M2FNUZ,
    }
)


def via_float32(kernel: Kernel) -> Kernel:
    """Return a kernel for float16 and bfloat16 too: computed in float32, the results rounded."""

    def run(*given: Array | None) -> Any:
        narrow = next((x.dtype for x in given if x is not None and _is_narrow(x)), None)
        if narrow is None:
            return kernel(*given)
        wide = [x.astype(np.float32) if x is not None and _is_narrow(x) else x for x in given]
        output = kernel(*wide)
        if not isinstance(output, list):
            return _rounded(output, narrow)
        return [_rounded(item, narrow) for item in output]

    return run


def _is_narrow(x: Array) -> bool:
    return x.dtype.name in ("float16", "bfloat16")


def _rounded(x: Array, narrow: np.dtype[Any]) -> Array:
    return x.astype(narrow) if x.dtype == np.float32 else x


def _log1p_exp(x: Array) -> Array:
    return np.asarray(np.logaddexp(x, x.dtype.type(0)))


def _logistic(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, e, 1).astype(x.dtype) / (1 + e))


def _celu(x: Array, alpha: float) -> Array:
    return np.maximum(x, 0) + np.minimum(alpha * np.expm1(x / alpha), 0)


def _shrink(x: Array, lambd: float, bias: float) -> Array:
    return np.where(x < -lambd, x + bias, np.where(x > lambd, x - bias, 0))


_SIMPLE: dict[str, Kernel] = {
    "Acos": np.arccos,
    "Acosh": np.arccosh,
    "Asin": np.arcsin,
    "Asinh": np.arcsinh,
    "Atan": np.arctan,
    "Atanh": np.arctanh,
    "Ceil": np.ceil,
    "Cos": np.cos,
    "Cosh": np.cosh,
    "Floor": np.floor,
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Mish": lambda x: x * np.tanh(_log1p_exp(x)),
    "Reciprocal": lambda x: 1 / x,
    "Relu": lambda x: np.maximum(x, 0),
    "Round": np.rint,
    "Sigmoid": _logistic,
    "Sin": np.sin,
    "Sinh": np.sinh,
    "Softplus": _log1p_exp,
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "Tan": np.tan,
}
"""Functions of one tensor without attributes."""

_PARAMETERS: dict[str, tuple[Kernel, tuple[tuple[str, float], ...]]] = {
    "Celu": (_celu, (("alpha", 1.0),)),
    "Elu": (lambda x, a: np.where(x < 0, a * np.expm1(x), x), (("alpha", 1.0),)),
    "HardSigmoid": (lambda x, a, b: np.clip(a * x + b, 0, 1), (("alpha", 0.2), ("beta", 0.5))),
    "LeakyRelu": (lambda x, a: np.where(x < 0, a * x, x), (("alpha", 0.01),)),
    "Selu": (
        lambda x, a, g: g * np.where(x > 0, x, a * np.expm1(x)),
        (("alpha", 1.67326319217681884765625), ("gamma", 1.05070102214813232421875)),
    ),
    "Shrink": (_shrink, (("lambd", 0.5), ("bias", 0.0))),
    "ThresholdedRelu": (lambda x, a: np.where(x > a, x, 0), (("alpha", 1.0),)),
}
"""Functions of one tensor, and their attributes with their defaults."""


def _typed(function: Kernel, *parameters: float) -> Kernel:
    def run(x: Array) -> Array:
        numbers = [x.dtype.type(number) for number in parameters]
        return np.asarray(function(x, *numbers), x.dtype)

    return via_float32(run)


def unary(op: Op) -> Kernel:
    """Return a function of one tensor."""
    if op.kind in _SIMPLE:
        return _typed(_SIMPLE[op.kind])
    function, attributes = _PARAMETERS[op.kind]
    return _typed(function, *(op.get(name, default) for name, default in attributes))


UNARY = (*_SIMPLE, *_PARAMETERS)


def softmax(op: Op) -> Kernel:
    """Return Softmax, LogSoftmax or Hardmax."""
    whole = op.version < 13
    axis = op.get("axis", 1 if whole else -1)

    def run(x: Array) -> Array:
        if not x.size:
            return x  # rows of nothing have no maximum
        first = axis % x.ndim
        axes = tuple(range(first, x.ndim)) if whole else (first,)
        if op.kind == "Hardmax":
            rows = x.reshape(*x.shape[:first], -1) if whole else np.moveaxis(x, first, -1)
            best = np.argmax(rows, -1)[..., None] == np.arange(rows.shape[-1])
            placed = best.reshape(x.shape) if whole else np.moveaxis(best, -1, first)
            return np.asarray(placed, x.dtype)
        shifted = x - np.max(x, axis=axes, keepdims=True, initial=-np.inf)
        e = np.exp(shifted)
        total = np.sum(e, axis=axes, keepdims=True)
        result = shifted - np.log(total) if op.kind == "LogSoftmax" else e / total
        return np.asarray(result, x.dtype)

    return via_float32(run)


def _log_sum_exp(x: Array, **along: Any) -> Array:
    if not x.size:
        return np.asarray(np.log(np.sum(x, **along)))
    most = np.max(x, axis=along["axis"], keepdims=True)
    safe = np.where(np.isfinite(most), most, 0)
    logs = np.log(np.sum(np.exp(x - safe), axis=along["axis"], keepdims=True)) + safe
    return np.asarray(logs if along["keepdims"] else np.squeeze(logs, along["axis"]))


_REDUCTIONS: dict[str, Kernel] = {
    "ReduceMean": np.mean,
    "ReduceL1": lambda x, **along: np.sum(np.abs(x), **along),
    "ReduceL2": lambda x, **along: np.sqrt(np.sum(np.square(x), **along)),
    "ReduceLogSum": lambda x, **along: np.log(np.sum(x, **along)),
    "ReduceLogSumExp": _log_sum_exp,
    "ReduceSumSquare": lambda x, **along: np.sum(np.square(x), **along),
}
"""Those that `kernels` has not."""

REDUCTIONS = tuple(_REDUCTIONS)


def reduction(op: Op) -> Kernel:
    """Return a reduction along axes that may be computed."""
    function = _REDUCTIONS[op.kind]
    keep, nothing = bool(op.get("keepdims", 1)), bool(op.get("noop_with_empty_axes", 0))

    def run(x: Array, axes: Array | None = None) -> Array:
        listed = op.get("axes", None) if axes is None else axes.reshape(-1).tolist()
        along = tuple(listed or (() if nothing else range(x.ndim)))
        return np.asarray(function(x, axis=along, keepdims=keep)).astype(x.dtype, copy=False)

    return via_float32(run)


def layer_norm(op: Op) -> Kernel:
    """Return LayerNormalization, with its mean and inverse deviation."""
    axis, epsilon, count = op.get("axis", -1), op.get("epsilon", 1e-5), len(op.outputs)

    def run(x: Array, scale: Array, bias: Array | None = None) -> list[Array]:
        axes = tuple(range(axis % x.ndim, x.ndim))
        mean = np.mean(x, axis=axes, keepdims=True)
        centred = x - mean
        inverse = 1 / np.sqrt(np.mean(np.square(centred), axis=axes, keepdims=True) + epsilon)
        scaled = centred * inverse * scale
        parts = [np.asarray(scaled if bias is None else scaled + bias, x.dtype)]
        # The statistics have the type that the operator computes in, for double also.
        parts += [np.asarray(part, np.float32) for part in (mean, inverse)]
        return parts[:count]

    return run


def batch_norm(op: Op) -> Kernel:
    """Return BatchNormalization in training mode: by the batch's own mean and variance."""
    if not op.get("training_mode", 0):
        raise KeyError("training_mode")
    epsilon, momentum = op.get("epsilon", 1e-5), op.get("momentum", 0.9)
    count = len(op.outputs)

    def run(x: Array, scale: Array, bias: Array, mean: Array, variance: Array) -> list[Array]:
        axes = tuple(axis for axis in range(x.ndim) if axis != 1)
        along = (-1, *(1,) * (x.ndim - 2))
        now, spread = np.mean(x, axis=axes), np.var(x, axis=axes)
        factor = scale / np.sqrt(spread + epsilon)
        normalized = (x - now.reshape(along)) * factor.reshape(along) + bias.reshape(along)
        running = [
            (old * momentum + new * (1 - momentum)).astype(old.dtype)
            for old, new in ((mean, now), (variance, spread))
        ]
        return [normalized.astype(x.dtype), *running][:count]

    return run


def dropout(op: Op) -> Kernel:
    """Return Dropout with its mask, in training mode too."""
    seed, count = op.get("seed", None), len(op.outputs)

    def run(x: Array, ratio: Array | None = None, training: Array | None = None) -> list[Array]:
        share = 0.5 if ratio is None else float(ratio)
        if training is None or not bool(training) or not share:
            return [x, np.ones(x.shape, np.bool_)][:count]
        numbers = np.random.RandomState(seed).uniform(0, 1, x.shape)
        mask = numbers >= share
        scale = x.dtype.type(1 / (1 - share) if share != 1 else 0)
        return [mask * x * scale, mask][:count]

    return run


def cast(op: Op) -> Kernel:
    """Return a conversion to any type; floats of 8 bits saturate where the node says so."""
    target = ir.DataType(op.attributes["to"]) if op.kind == "Cast" else op.output.dtype
    if target is None or target == ir.DataType.STRING:
        raise KeyError("to")
    dtype, saturate = target.numpy(), bool(op.get("saturate", 1))
    if target == ir.DataType.FLOAT8E8M0:
        mode = op.get("round_mode", "up")
        return lambda x, like=None: numpy_helper.to_float8e8m0(x, saturate, mode).astype(dtype)
    if target in FLOAT8 and saturate:
        return lambda x, like=None: numpy_helper.saturate_cast(x, dtype)
    return lambda x, like=None: x.astype(dtype, copy=False)


def bit_cast(op: Op) -> Kernel:
    """Return the same bytes as another type of that size."""
    dtype = ir.DataType(op.attributes["to"]).numpy()
    return lambda x: np.ascontiguousarray(x).reshape(x.shape).view(dtype)


def power(op: Op) -> Kernel:
    """Return Pow of any types."""
    return lambda x, y: np.power(x, y).astype(x.dtype, copy=False)


def norm(op: Op) -> Kernel:
    """Return LpNormalization."""
    axis, order = op.get("axis", -1), op.get("p", 2)

    def run(x: Array) -> Array:
        length = np.linalg.norm(x, order, axis, keepdims=True)
        return np.where(length == 0, 0, x / np.where(length == 0, 1, length)).astype(x.dtype)

    return via_float32(run)


def mean_of_all(op: Op) -> Kernel:
    """Return Mean, the mean of tensors."""
    return via_float32(
        lambda *given: (sum(given[1:], given[0]) / len(given)).astype(given[0].dtype)
    )


def einsum(op: Op) -> Kernel:
    """Return Einsum."""
    equation = str(op.attributes["equation"]).replace(" ", "")
    return lambda *given: np.asarray(np.einsum(equation, *given, optimize=True), given[0].dtype)


def matmul(_: Op) -> Kernel:
    """Return MatMul."""
    return np.matmul


def gemm(op: Op) -> Kernel:
    """Return alpha · A · B + beta · C."""
    alpha, beta = op.get("alpha", 1.0), op.get("beta", 1.0)
    turn_a, turn_b = bool(op.get("transA", 0)), bool(op.get("transB", 0))

    def run(a: Array, b: Array, c: Array | None = None) -> Array:
        result = (a.T if turn_a else a) @ (b.T if turn_b else b)
        whole = result * alpha if alpha != 1.0 else result
        return np.asarray(whole if c is None else whole + beta * c, a.dtype)

    return run


def _loss(op: Op, logs: Array, target: Array, weight: Array | None) -> Array:
    """Weigh the negative logarithms that `target` picks along axis 1, and reduce them."""
    ignored, reduction = op.get("ignore_index", None), op.get("reduction", "mean")
    classes = logs.shape[1]
    kept = np.ones(target.shape, np.bool_) if ignored is None else target != ignored
    # A copy: who feeds the array may write to it after it is checked.
    index = np.where(kept, target, 0).astype(np.int64)
    if index.size and (index.min() < -classes or index.max() >= classes):
        raise IndexError(f"a class is out of range of {classes} classes")
    index %= max(1, classes)
    picked = np.take_along_axis(logs, index[:, None], 1)[:, 0]
    weights = np.ones(target.shape, logs.dtype) if weight is None else weight[index]
    weights = np.where(kept, weights, 0).astype(logs.dtype)
    losses = np.where(kept, -picked * weights, 0).astype(logs.dtype)
    if reduction == "none":
        return losses
    total = np.sum(losses)
    if reduction == "sum":
        return np.asarray(total, logs.dtype)
    return np.asarray(total / np.sum(weights), logs.dtype)


def negative_log_likelihood(op: Op) -> Kernel:
    """Return NegativeLogLikelihoodLoss."""
    return lambda logs, target, weight=None: _loss(op, logs, target, weight)


def softmax_cross_entropy(op: Op) -> Kernel:
    """Return SoftmaxCrossEntropyLoss, with the logarithms of probabilities where wanted."""
    count = len(op.outputs)

    def run(scores: Array, target: Array, weight: Array | None = None) -> list[Array]:
        shifted = scores - np.max(scores, axis=1, keepdims=True)
        logs = shifted - np.log(np.sum(np.exp(shifted), axis=1, keepdims=True))
        logs = logs.astype(scores.dtype)
        return [_loss(op, logs, target, weight), logs][:count]

    return run
