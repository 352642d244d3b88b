"""LSTM, GRU and RNN; oracle: the equations of ONNX in numpy, in float64.

States are at most 1 in magnitude and recurrence weights a matrix of norm 1 at most: the tolerance
is 2e-6 for GEMMs in float32 in another order and an error of 1e-7 of each activation, over 4 steps.
With int8 weights the oracle quantizes states likewise, in float32 and by row: where its quotient
lies between two integers, the other one may come out, which is 1/127 of a state times a weight.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
from edge_kit import Cases, Kernel, edges

from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.own.recurrent import GATES, Activation, Cell, Recurrence

CASES = Cases()
TOLERANCE = 2e-6
ROUNDED = 1e-2
UNITS = edges(8, 16, least=1)
"""Hidden units around 1 to 3 vectors of each instruction set; the lowering refuses 0."""
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13)
"""Sequences around tiles of 4 and fewer: the lowering leaves out what has none."""
USUAL = {
    "LSTM": ("sigmoid", "tanh", "tanh"),
    "GRU": ("sigmoid", "tanh"),
    "GRU after": ("sigmoid", "tanh"),
    "RNN": ("tanh",),
}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step_of(kind, gates, hidden, cell, weights, extra, seen):
    """Return the states after a step.

    Args:
        kind: of the cell.
        gates: the input's part, [rows, gates, units].
        hidden: [rows, units].
        cell: likewise.
        weights: [gates, units, units].
        extra: peepholes, or the bias of the hidden gate.
        seen: returns a state as matmuls read it.
    """
    if kind == "RNN":
        return np.tanh(gates[:, 0] + seen(hidden) @ weights[0].T), cell
    if kind == "LSTM":
        added = gates + np.einsum("bh,guh->bgu", seen(hidden), weights)
        i, o, f, c = np.moveaxis(added, 1, 0)
        peep = np.zeros((3, 1)) if extra is None else extra
        i, f = sigmoid(i + peep[0] * cell), sigmoid(f + peep[2] * cell)
        cell = f * cell + i * np.tanh(c)
        return sigmoid(o + peep[1] * cell) * np.tanh(cell), cell
    z, r = (sigmoid(gates[:, g] + seen(hidden) @ weights[g].T) for g in (0, 1))
    if kind == "GRU":
        new = np.tanh(gates[:, 2] + seen(r * hidden) @ weights[2].T)
    else:
        new = np.tanh(gates[:, 2] + r * (seen(hidden) @ weights[2].T + extra[0]))
    return (1 - z) * new + z * hidden, cell


def expected_of(kind, gates, states, lengths, weights, extra, backwards, seen):
    """Return Y [steps, directions, rows, units] and the last states."""
    steps, rows, directions = gates.shape[:3]
    y = np.zeros((steps, directions, rows, gates.shape[4]))
    hidden, cell = (state.astype(np.float64) for state in states)
    for direction in range(directions):
        vectors = None if extra is None else extra[direction]
        turned = backwards or direction == 1
        for at in range(steps):
            for row in range(rows):
                if at >= lengths[row]:
                    continue
                place = lengths[row] - 1 - at if turned else at
                h, c = (s[direction, row : row + 1] for s in (hidden, cell))
                given = gates[place, row : row + 1, direction]
                h, c = step_of(kind, given, h, c, weights[direction], vectors, seen)
                hidden[direction, row], cell[direction, row] = h[0], c[0]
                y[place, direction, row] = h[0]
    hidden[:, lengths == 0] = 0
    cell[:, lengths == 0] = 0
    return y, hidden, cell


def drawn(kernel, kind, directions, units):
    """Return recurrence weights of norm 1 at most, and what a cell takes beside them."""
    gates = GATES[kind]
    weights = kernel.floats(directions, gates, units, units)
    weights /= np.maximum(np.linalg.norm(weights, 2, axis=(2, 3), keepdims=True), 1)
    count = {"LSTM": 3, "GRU after": 1}.get(kind, 0)
    return weights, kernel.floats(directions, count, units) / 4 if count else None


def constant(array):
    return None if array is None else Weight(array.shape, array.dtype, "", lambda: array)


def check(
    kernel: Kernel, kind, recurrence, weights, extra, rows, steps, backwards, more, seen, tolerance
):
    """Run a recurrence and compare its three results."""
    directions, gates, units = weights.shape[:3]
    x = kernel.floats(steps, rows, directions, gates, units)
    lengths = np.full(rows, steps, np.int32)
    states = np.zeros((2, directions, rows, units), np.float32)
    given, inputs = [x], {}
    if more:
        lengths = kernel.rng.integers(0, steps + 1, rows, np.int32)
        states = np.tanh(kernel.floats(2, directions, rows, units))
        given += [states[0], lengths]
        inputs = {"hidden": 1, "lengths": 2}
        if kind == "LSTM":
            given.append(states[1])
            inputs["cell"] = 3
    found = expected_of(
        kind, x.astype(np.float64), states, lengths, weights, extra, backwards, seen
    )
    wanted = found if kind == "LSTM" else found[:2]
    state = directions * rows * units
    places = {
        "y_strides": (state, rows * units, units),
        "state_strides": (rows * units, units),
        "has_y": 1,
        "has_hidden": 1,
        "hidden_offset": steps * state,
        "has_cell": kind == "LSTM",
        "cell_offset": (steps + 1) * state,
    }
    params = recurrence.reshape(steps, rows, kernel.pool, inputs, places)
    expected = np.concatenate([each.reshape(-1) for each in wanted]).astype(np.float32)
    got = kernel.run(params, given, expected.shape, np.float32, workspace=recurrence.workspace)
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


SIZES = {
    "units": UNITS,
    "rows": ROWS,
    "steps": (1, 2, 4),
    "kind": tuple(GATES),
    "way": ("forward", "reverse", "both"),
    "more": (False, True),
}


def cell_of(kind, directions, backwards):
    functions = [[Activation(name) for name in USUAL[kind]]] * directions
    return Cell(kind, functions, backwards=backwards)


@CASES.of(
    "NP_RECURRENT",
    **SIZES,
    target=("avx2", "best"),
)
def recurrent(kernel, units, rows, steps, kind, way, more, target):
    directions, backwards = 1 + (way == "both"), way == "reverse"
    weights, extra = drawn(kernel, kind, directions, units)
    flat = constant(weights.reshape(directions, -1, units))
    with mock.patch.object(kernels, "TARGET", target):
        recurrence = Recurrence(cell_of(kind, directions, backwards), flat, constant(extra))
        check(
            kernel,
            *(kind, recurrence, weights, extra, rows, steps, backwards, more),
            lambda state: state,
            TOLERANCE,
        )


def quantized(state):
    """Return a state as int8 matmuls read it: 127 steps to the largest element of a row."""
    largest = np.abs(state).max(axis=1, keepdims=True).astype(np.float32).astype(np.float64)
    largest[largest == 0] = 1
    return np.rint(state / largest * 127) * largest / 127


@CASES.of(
    "NP_RECURRENT",
    **SIZES,
    zeros=(False, True),
    target=("plain", "avx2", "best"),
)
def recurrent_of_bytes(kernel, units, rows, steps, kind, way, more, zeros, target):
    directions, backwards = 1 + (way == "both"), way == "reverse"
    _, extra = drawn(kernel, kind, directions, units)
    integers = kernel.bytes(directions, GATES[kind] * units, units)
    shape = integers.shape[:2]
    zero = kernel.rng.integers(-9, 9, shape, np.int32) if zeros else None
    wide = integers.astype(np.float64) - (0 if zero is None else zero[..., None])
    by_gate = wide.reshape(directions, GATES[kind], units, units)
    norms = np.maximum(np.linalg.norm(by_gate, 2, axis=(2, 3)), 1)
    scales = np.repeat(1 / norms, units, axis=1).reshape(shape).astype(np.float32)
    weights = (wide * scales[..., None]).reshape(by_gate.shape)
    with mock.patch.object(kernels, "TARGET", target):
        recurrence = Recurrence(
            cell_of(kind, directions, backwards),
            *(constant(integers), constant(extra), None, constant(scales), zero),
        )
        check(
            kernel,
            *(kind, recurrence, weights, extra, rows, steps, backwards, more),
            *(quantized, ROUNDED),
        )
