"""Numpy kernels: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from narrowpass_planning.graph.op import Op

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]


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
