"""LSTM, GRU and RNN in numpy: the products with the inputs at once, the rest step by step.

Covered are the default activations, without clipping, peepholes and sequence lengths; the
reference evaluator does the others. Gates and formulas are those of the ONNX specification.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from narrowpass_xnn_cpu.lower.op import Op

Array = np.ndarray[Any, Any]

_GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
_ACTIVATIONS = {"RNN": ["Tanh"], "GRU": ["Sigmoid", "Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"]}


def make(op: Op) -> Callable[..., list[Array]]:
    """Give the kernel of an operation.

    Raises:
        KeyError: something that is not covered.
    """
    direction = _text(op.get("direction", "forward"))
    count = 2 if direction == "bidirectional" else 1
    given = [_text(name) for name in op.get("activations", ())]
    if given and given != _ACTIVATIONS[op.kind] * count:
        raise KeyError("activations")
    if op.get("clip", 0.0) or op.get("input_forget", 0) or op.input(4) is not None:
        raise KeyError("clip, input_forget or sequence_lens")
    if op.input(7) is not None:
        raise KeyError("peepholes")
    batch_first = bool(op.get("layout", 0))
    reset_after = bool(op.get("linear_before_reset", 0))
    steps = {"RNN": _rnn, "GRU": _gru(reset_after), "LSTM": _lstm}[op.kind]
    outputs = len(op.outputs)

    def run(
        x: Array, w: Array, r: Array, b: Array | None = None, *rest: Array | None
    ) -> list[Array]:
        starts = [*rest[1:3], None, None][:2]  # after the lengths: the states before the first row
        if batch_first:
            starts = [None if item is None else item.swapaxes(0, 1) for item in starts]
        rows = x.swapaxes(0, 1) if batch_first else x
        ends = []
        for index in range(count):
            backwards = direction == "reverse" or index == 1
            taken = [None if item is None else item[index] for item in starts]
            bias = np.zeros(2 * w.shape[1], x.dtype) if b is None else b[index]
            along = rows[::-1] if backwards else rows
            states, last = _sequence(steps, along, w[index], r[index], bias, taken)
            ends.append((states[::-1] if backwards else states, *last))
        columns = [
            np.stack(column, axis=1 if place == 0 else 0)
            for place, column in enumerate(zip(*ends, strict=True))
        ]
        if batch_first:
            columns[0] = columns[0].transpose(2, 0, 1, 3)
            columns[1:] = [column.swapaxes(0, 1) for column in columns[1:]]
        return columns[:outputs]

    return run


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


Step = Callable[[Array, tuple[Array, ...], Array, Array], tuple[Array, ...]]
"""Takes the input's part of the gates, the states, the matrix and the bias of the recurrence."""


def _sequence(
    step: Step,
    rows: Array,
    w: Array,
    r: Array,
    bias: Array,
    starts: Sequence[Array | None],
) -> tuple[Array, tuple[Array, ...]]:
    """Give the hidden states [T, B, H] of one direction, and the last states."""
    hidden = r.shape[-1]
    half = len(bias) // 2
    gates = rows @ w.T + bias[:half]
    zeros = np.zeros((rows.shape[1], hidden), rows.dtype)
    states = tuple(zeros if start is None else start for start in starts)
    if step is not _lstm:
        states = states[:1]
    matrix = np.ascontiguousarray(r.T)
    found = np.empty((rows.shape[0], rows.shape[1], hidden), rows.dtype)
    for index, gate in enumerate(gates):
        states = step(gate, states, matrix, bias[half:])
        found[index] = states[0]
    return found, states


def _sigmoid(x: Array) -> Array:
    # Half of tanh: nothing overflows.
    result: Array = 0.5 * np.tanh(0.5 * x) + x.dtype.type(0.5)
    return result


def _lstm(gate: Array, states: tuple[Array, ...], r: Array, bias: Array) -> tuple[Array, ...]:
    h, c = states
    i, o, f, new = np.split(gate + h @ r + bias, 4, axis=-1)
    c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(new)
    return _sigmoid(o) * np.tanh(c), c


def _rnn(gate: Array, states: tuple[Array, ...], r: Array, bias: Array) -> tuple[Array, ...]:
    return (np.tanh(gate + states[0] @ r + bias),)


def _gru(reset_after: bool) -> Step:
    def step(gate: Array, states: tuple[Array, ...], r: Array, bias: Array) -> tuple[Array, ...]:
        (h,) = states
        size = h.shape[-1]
        both = _sigmoid(gate[:, : 2 * size] + h @ r[:, : 2 * size] + bias[: 2 * size])
        z, reset = both[:, :size], both[:, size:]
        last, end = r[:, 2 * size :], bias[2 * size :]
        inner = reset * (h @ last + end) if reset_after else (reset * h) @ last + end
        new = np.tanh(gate[:, 2 * size :] + inner)
        return ((1 - z) * new + z * h,)

    return step
