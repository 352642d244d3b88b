"""Numpy kernel: SVMClassifier of ai.onnx.ml, with the results of onnxruntime.

Decisions are those of one class against another, as libsvm orders them; kernels and decisions are
computed in double. Probabilities: T.-F. Wu, C.-J. Lin and R. C. Weng, Probability Estimates for
Multi-class Classification by Pairwise Coupling, JMLR 5 (2004), the second method.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from narrowpass_planning.graph.op import Op

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]

_LEAST = np.float32(1e-7)
"""How near a probability of one class against another comes to 0 and 1."""


def classifier(op: Op) -> Kernel:
    """Return labels [rows], int64 or strings, and scores [rows, columns], float32.

    Raises:
        KeyError: a post_transform, kernel_type or number of scores without a kernel here.
    """
    machine = _Pairs(op) if op.get("vectors_per_class", None) else _Linear(op)
    transform = op.get("post_transform", "NONE")
    if transform != "NONE" and machine.single:
        raise KeyError(transform)
    after = {"NONE": lambda scores: scores, "LOGISTIC": _logistic, "SOFTMAX": _softmax}[transform]
    texts = op.get("classlabels_strings", None)
    labels = np.array(texts, object) if texts else np.array(op.attributes["classlabels_ints"])
    if labels.size != machine.classes:
        raise KeyError(f"{labels.size} labels")

    def run(x: Array) -> list[Array]:
        rows = np.atleast_2d(x).astype(np.float32).astype(np.float64)
        chosen, scores = machine.decide(rows)
        return [labels[chosen], after(scores).astype(np.float32)]

    return run


def _logistic(scores: Array) -> Array:
    return 1 / (1 + np.exp(-scores))


def _softmax(scores: Array) -> Array:
    raised = np.exp(scores - scores.max(1, keepdims=True))
    shares: Array = raised / raised.sum(1, keepdims=True)
    return shares


class _Linear:
    """Scores that are linear in the features."""

    single = False

    def __init__(self, op: Op) -> None:
        labels = op.get("classlabels_strings", None) or op.get("classlabels_ints", ())
        self.classes = len(labels)
        weights = np.array(op.attributes["coefficients"], np.float64)
        if not self.classes or weights.size % self.classes:
            raise KeyError(f"{weights.size} coefficients of {self.classes} classes")
        self._weights = weights.reshape(self.classes, -1).T
        self._rho = float(op.attributes["rho"][0])
        self._positive = bool((weights >= 0).all())

    def decide(self, x: Array) -> tuple[Array, Array]:
        """Return the number of each row's class, and the scores of all classes."""
        scores = x @ self._weights + self._rho
        chosen = scores.argmax(1)
        if self.classes == 2:
            most = scores.max(1)
            second = most >= 0.5 if self._positive else most > 0
            chosen = np.where(second, 1, chosen)
        return chosen, scores


class _Pairs:
    """Decisions between each two classes, from kernels of the rows and the support vectors."""

    def __init__(self, op: Op) -> None:
        counts = np.array(op.attributes["vectors_per_class"], np.int64)
        self.classes, total = counts.size, int(counts.sum())
        self._pairs = list(combinations(range(self.classes), 2))
        vectors = np.array(op.attributes["support_vectors"], np.float64)
        weights = np.array(op.attributes["coefficients"], np.float64)
        fits = total and self.classes > 1 and vectors.size % total == 0
        if not fits or weights.size < (self.classes - 1) * total:
            raise KeyError(f"{vectors.size} numbers are not those of {total} support vectors")
        self._vectors = vectors.reshape(total, -1)
        rows = weights[: (self.classes - 1) * total].reshape(self.classes - 1, total)
        ends = np.cumsum(counts)
        parts = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        self._weights = np.zeros((total, len(self._pairs)))
        for at, (one, other) in enumerate(self._pairs):
            self._weights[parts[one], at] = rows[other - 1, parts[one]]
            self._weights[parts[other], at] = rows[one, parts[other]]
        self._rho = self._numbers(op, "rho")
        self._sigmoids: tuple[Array, Array] | None = None
        if op.get("prob_a", None) or op.get("prob_b", None):
            self._sigmoids = self._numbers(op, "prob_a"), self._numbers(op, "prob_b")
        self.single = self.classes == 2 and self._sigmoids is None
        self._name = op.get("kernel_type", "LINEAR")
        if self._name not in ("LINEAR", "POLY", "RBF", "SIGMOID"):
            raise KeyError(self._name)
        given = (*map(float, op.get("kernel_params", ())), 0.0, 0.0, 0.0)
        self._gamma, self._offset, self._degree = given[:3]

    def _numbers(self, op: Op, name: str) -> Array:
        given = op.get(name, ())
        if len(given) < len(self._pairs):
            raise KeyError(name)
        return np.array(given[: len(self._pairs)], np.float64)

    def decide(self, x: Array) -> tuple[Array, Array]:
        """Return the number of each row's class, and decisions or probabilities."""
        decisions = self._kernel(x) @ self._weights + self._rho
        votes = np.zeros((len(x), self.classes), np.int64)
        for at, (one, other) in enumerate(self._pairs):
            wins = decisions[:, at] > 0
            votes[:, one] += wins
            votes[:, other] += ~wins
        chosen = votes.argmax(1)
        if self._sigmoids is not None:
            return chosen, self._probabilities(decisions.astype(np.float32), *self._sigmoids)
        if self.single:
            return chosen, np.concatenate([-decisions, decisions], 1)
        return chosen, decisions

    def _kernel(self, x: Array) -> Array:
        along: Array = x @ self._vectors.T
        if self._name == "LINEAR":
            return along
        if self._name == "RBF":
            lengths = (x**2).sum(1)[:, None] + (self._vectors**2).sum(1)
            near: Array = np.exp(-self._gamma * np.maximum(lengths - 2 * along, 0))
            return near
        affine = self._gamma * along + self._offset
        kernel: Array = np.tanh(affine) if self._name == "SIGMOID" else affine**self._degree
        return kernel

    def _probabilities(self, decisions: Array, slopes: Array, offsets: Array) -> Array:
        """Return the probability of each class: [rows, classes], float32."""
        shape = len(decisions), self.classes, self.classes
        against = np.zeros(shape, np.float32)  # [row, one, other]: of the one, not the other
        for at, (one, other) in enumerate(self._pairs):
            wins = 1 - _logistic(decisions[:, at] * slopes[at] + offsets[at])
            wins = np.clip(wins.astype(np.float32), _LEAST, 1 - _LEAST)
            against[:, one, other], against[:, other, one] = wins, 1 - wins
        return coupled(against)


def coupled(against: Array) -> Array:
    """Return the probabilities of classes from those of each class against each other one.

    Args:
        against: float32 [rows, classes, classes]; 0 on the diagonal.

    Returns:
        float32 [rows, classes]. A row is done when no class is further than 0.005 / classes from
        the optimum, as in libsvm, whose rounding to float32 this keeps: when it ends depends on it.
    """
    rows, classes, _ = against.shape
    matrix = -against.transpose(0, 2, 1) * against
    places = np.arange(classes)
    matrix[:, places, places] = (against**2).sum(1)
    probabilities = np.full((rows, classes), 1 / classes, np.float32)
    left, limit = np.arange(rows), np.float32(0.005 / classes)
    for _ in range(100):
        q, p = matrix[left], probabilities[left]
        along = (q @ p[:, :, None])[:, :, 0]
        total = (p * along).sum(1)
        going = np.abs(along - total[:, None]).max(1) >= limit
        left, q, p, along, total = (item[going] for item in (left, q, p, along, total))
        if not left.size:
            break
        for place in range(classes):
            own = q[:, place, place]
            step = (total - along[:, place]) / own
            p[:, place] += step
            scale = 1 + step
            total = (total + step * (step * own + 2 * along[:, place])) / scale / scale
            along = (along + step[:, None] * q[:, place]) / scale[:, None]
            p /= scale[:, None]
        probabilities[left] = p
    return probabilities
