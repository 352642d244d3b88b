"""LSTM, GRU and RNN in numpy: the matmuls with the inputs at once, the rest step by step.

Gates, formulas and activations are those of the ONNX specification. T is the number of rows, B the
batch, I and H the sizes of a row and of the state, D the number of directions, G the number of
gates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]
States = tuple[Array, ...]
"""The hidden state [B, H], and for an LSTM the cell's [B, H]."""
Step = Callable[[Array, States, Array], States]
"""Takes the input's part of the gates [B, G*H], the states and the recurrence [H, G*H]."""

_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


class Recurrent:
    """An LSTM, GRU or RNN as a function of arrays.

    All attributes of the operators are taken. float16 and bfloat16 are computed in float32 and
    rounded at the outputs, float32 and float64 in themselves. What the specification leaves open
    is as in onnxruntime: `clip` bounds the gates, not the cell's state that the function h takes,
    and a sequence of length 0 has last states of 0, whatever the initial ones.

    Args:
        op_type: LSTM, GRU or RNN.
        attributes: the node's; those that are None count as not given.

    Raises:
        ValueError: a direction or an activation that the operator has not.
    """

    def __init__(self, op_type: str, attributes: Mapping[str, Any]) -> None:
        given = {name: value for name, value in attributes.items() if value is not None}
        direction = given.get("direction", "forward")
        self._direction = direction.decode() if isinstance(direction, bytes) else str(direction)
        if self._direction not in _DIRECTIONS:
            raise ValueError(f"{op_type} has no direction {self._direction!r}")
        self._op_type = op_type
        self._functions = activations(op_type, given, _DIRECTIONS[self._direction])
        clip = float(given.get("clip", 0.0))
        if clip > 0:
            self._functions = [
                [*(_clipped(function, clip) for function in each[:2]), *each[2:]]
                for each in self._functions
            ]
        self._coupled = bool(given.get("input_forget", 0))
        self._reset_after = bool(given.get("linear_before_reset", 0))
        self._batch_first = bool(given.get("layout", 0))

    def __call__(
        self,
        x: Array,
        w: Array,
        r: Array,
        b: Array | None = None,
        lengths: Array | None = None,
        hidden: Array | None = None,
        cell: Array | None = None,
        peepholes: Array | None = None,
    ) -> list[Array]:
        """Compute Y, Y_h and, for an LSTM, Y_c, of the dtype of `x`.

        Args:
            x: [T, B, I]; with layout 1 [B, T, I].
            w: [D, G*H, I].
            r: [D, G*H, H].
            b: [D, 2*G*H]; None for zeros.
            lengths: [B], of the sequences; None for T.
            hidden: [D, B, H], with layout 1 [B, D, H]; None for zeros.
            cell: as `hidden`, of an LSTM.
            peepholes: [D, 3*H], of an LSTM; None for zeros.

        Returns:
            Y [T, D, B, H], Y_h and Y_c [D, B, H]; with layout 1 [B, T, D, H] and [B, D, H].

        Raises:
            ValueError: shapes or lengths that do not fit.
        """
        dtype = x.dtype
        wide = np.float64 if dtype == np.float64 else np.float32
        x, w, r = (item.astype(wide, copy=False) for item in (x, w, r))
        b, hidden, cell, peepholes = (
            None if item is None else item.astype(wide, copy=False)
            for item in (b, hidden, cell, peepholes)
        )
        rows = x
        if self._batch_first:
            rows = x.swapaxes(0, 1)
            hidden, cell = (None if s is None else s.swapaxes(0, 1) for s in (hidden, cell))
        valid = None if lengths is None else _valid(lengths, *rows.shape[:2])
        ends = []
        for index, functions in enumerate(self._functions):
            bias, p = (None if item is None else item[index] for item in (b, peepholes))
            step, gate_bias = self._step(functions, bias, p, r.shape[-1])
            gates = rows @ w[index].T
            if gate_bias is not None:
                gates += gate_bias
            starts = [hidden, cell] if self._op_type == "LSTM" else [hidden]
            zeros = np.zeros((rows.shape[1], r.shape[-1]), wide)
            states = tuple(zeros if start is None else start[index] for start in starts)
            matrix = np.ascontiguousarray(r[index].T)
            backwards = self._direction == "reverse" or index == 1
            ends.append(_sequence(step, gates, matrix, states, valid, backwards=backwards))
        columns = [
            np.stack(column, axis=1 if place == 0 else 0).astype(dtype, copy=False)
            for place, column in enumerate(zip(*ends, strict=True))
        ]
        if self._batch_first:
            columns[0] = columns[0].transpose(2, 0, 1, 3)
            columns[1:] = [column.swapaxes(0, 1) for column in columns[1:]]
        return columns

    def _step(
        self, functions: Sequence[Function], bias: Array | None, p: Array | None, size: int
    ) -> tuple[Step, Array | None]:
        """Return the step of one direction, and what to add to the input's part of the gates.

        Args:
            functions: f, g, h as far as the operator has them.
            bias: [2*G*H].
            p: peepholes, [3*H].
            size: H.
        """
        both = None if bias is None else bias[: len(bias) // 2] + bias[len(bias) // 2 :]
        if self._op_type == "RNN":
            return _rnn(*functions), both
        if self._op_type == "LSTM":
            return _lstm(*functions, p=p, coupled=self._coupled), both
        if not self._reset_after:
            return _gru(*functions), both
        end = np.zeros(size, np.float32)
        if bias is not None and both is not None:
            end = bias[5 * size :]
            both[2 * size :] = bias[2 * size : 3 * size]
        return _gru_reset_after(*functions, end=end), both


def _clipped(function: Function, clip: float) -> Function:
    return lambda x: function(np.clip(x, -clip, clip))


def _valid(lengths: Array, rows: int, batch: int) -> Array:
    """Return which rows belong to their sequences, as booleans [T, B, 1]."""
    if lengths.shape != (batch,) or (lengths < 0).any() or (lengths > rows).any():
        raise ValueError(
            f"sequence_lens must be {batch} numbers from 0 to {rows}, not {lengths.tolist()}"
        )
    return (np.arange(rows)[:, None] < lengths)[..., None]


def _sequence(
    step: Step,
    gates: Array,
    matrix: Array,
    states: States,
    valid: Array | None,
    *,
    backwards: bool,
) -> tuple[Array, ...]:
    """Return the hidden states [T, B, H] of one direction, and the last states [B, H].

    Args:
        step: of the operator.
        gates: [T, B, G*H], the input's part of them.
        matrix: [H, G*H], of the recurrence.
        states: the initial ones, [B, H].
        valid: booleans [T, B, 1]; rows that are not leave the states as they are.
        backwards: whether the last row comes first.
    """
    found = np.empty((*gates.shape[:2], matrix.shape[0]), gates.dtype)
    order = range(len(gates))
    for index in reversed(order) if backwards else order:
        stepped = step(gates[index], states, matrix)
        if valid is None:
            states = stepped
            found[index] = stepped[0]
            continue
        here = valid[index]
        states = tuple(np.where(here, new, old) for new, old in zip(stepped, states, strict=True))
        found[index] = np.where(here, stepped[0], 0)
    if valid is None:
        return found, *(states if len(gates) else map(np.zeros_like, states))
    some = valid.any(axis=0)
    return found, *(np.where(some, state, 0) for state in states)


def _rnn(f: Function) -> Step:
    return lambda gate, states, r: (f(gate + states[0] @ r),)


def _lstm(f: Function, g: Function, h: Function, *, p: Array | None, coupled: bool) -> Step:
    """Return the step of an LSTM; the gates stand in the order i, o, f, c."""

    def plain(gate: Array, states: States, r: Array) -> States:
        hidden, cell = states
        size = cell.shape[-1]
        gate = gate + hidden @ r
        three = f(gate[:, : 3 * size])
        i, o, forget = three[:, :size], three[:, size : 2 * size], three[:, 2 * size :]
        if coupled:
            forget = 1 - i
        cell = forget * cell + i * g(gate[:, 3 * size :])
        return o * h(cell), cell

    def peeping(gate: Array, states: States, r: Array) -> States:
        hidden, cell = states
        i, o, forget, new = np.split(gate + hidden @ r, 4, axis=-1)
        i = f(i + p_i * cell)
        forget = 1 - i if coupled else f(forget + p_f * cell)
        cell = forget * cell + i * g(new)
        return f(o + p_o * cell) * h(cell), cell

    if p is None:
        return plain
    p_i, p_o, p_f = np.split(p, 3)
    return peeping


def _gru(f: Function, g: Function) -> Step:
    """Return the step of a GRU that resets the state first; the gates are in the order z, r, h."""

    def step(gate: Array, states: States, r: Array) -> States:
        (hidden,) = states
        size = hidden.shape[-1]
        both = f(gate[:, : 2 * size] + hidden @ r[:, : 2 * size])
        z, reset = both[:, :size], both[:, size:]
        new = g(gate[:, 2 * size :] + (reset * hidden) @ r[:, 2 * size :])
        return ((1 - z) * new + z * hidden,)

    return step


def _gru_reset_after(f: Function, g: Function, *, end: Array) -> Step:
    """Return the step of a GRU that resets the recurrent matmul, to which `end` [H] was added."""

    def step(gate: Array, states: States, r: Array) -> States:
        (hidden,) = states
        size = hidden.shape[-1]
        hidden_gates = hidden @ r
        both = f(gate[:, : 2 * size] + hidden_gates[:, : 2 * size])
        z, reset = both[:, :size], both[:, size:]
        new = g(gate[:, 2 * size :] + reset * (hidden_gates[:, 2 * size :] + end))
        return ((1 - z) * new + z * hidden,)

    return step


class RecurrentOperator(OpRun):
    """LSTM, GRU and RNN; onnx's take neither lengths, nor activations, nor clipping."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._recurrent: Recurrent | None = None
        if not self.has_linked_attribute:
            given = {name: getattr(self, name) for name in self.attributes_names_}
            self._recurrent = Recurrent(self.op_type, given)

    def _run(self, *inputs: Any, **attributes: Any) -> tuple[Any, ...]:
        return tuple((self._recurrent or Recurrent(self.op_type, attributes))(*inputs))


Function = Callable[[Array], Array]
"""Takes an array and returns a new one of the same shape and dtype, element by element."""

_DEFAULTS = MappingProxyType(
    {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
)


def sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), as half of tanh: nothing overflows."""
    result: Array = 0.5 * np.tanh(0.5 * x) + x.dtype.type(0.5)
    return result


def _elu(x: Array, alpha: float) -> Array:
    return np.where(x >= 0, x, alpha * np.expm1(np.minimum(x, 0)))


_PLAIN: Mapping[str, Function] = MappingProxyType(
    {
        "relu": lambda x: np.maximum(x, 0),
        "sigmoid": sigmoid,
        "softplus": lambda x: np.logaddexp(0, x, dtype=x.dtype),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "tanh": np.tanh,
    }
)
_WITH_ALPHA: Mapping[str, tuple[Callable[[Array, float], Array], float]] = MappingProxyType(
    {
        "elu": (_elu, 1.0),
        "leakyrelu": (lambda x, alpha: np.where(x >= 0, x, alpha * x), 0.01),
        "thresholdedrelu": (lambda x, alpha: np.where(x >= alpha, x, 0), 1.0),
    }
)
_WITH_BOTH: Mapping[str, tuple[Callable[[Array, float, float], Array], float, float]] = (
    MappingProxyType(
        {
            "affine": (lambda x, alpha, beta: alpha * x + beta, 1.0, 0.0),
            "hardsigmoid": (lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), 0.2, 0.5),
            "scaledtanh": (lambda x, alpha, beta: alpha * np.tanh(beta * x), 1.0, 1.0),
        }
    )
)


def activations(
    op_type: str, attributes: Mapping[str, Any], directions: int
) -> list[list[Function]]:
    """Return the functions f, g, h of each direction, as many as the operator has.

    `activation_alpha` and `activation_beta` hold numbers for those functions that take one, in
    order; where the numbers end, functions have the defaults of the operators of the same names.

    Args:
        op_type: LSTM, GRU or RNN.
        attributes: the node's, those that are given. `activations` may hold bytes.
        directions: 1 or 2.

    Raises:
        ValueError: unknown functions, or too few or many.
    """
    usual = _DEFAULTS[op_type]
    given = [_text(name) for name in attributes.get("activations") or ()] or [*usual] * directions
    if op_type == "RNN":
        given = given[:directions]  # its default names two, for one direction as well
    if len(given) != len(usual) * directions:
        raise ValueError(
            f"{op_type} takes {len(usual) * directions} activations, not {len(given)}: "
            + ", ".join(given)
        )
    alphas = iter(_numbers(attributes.get("activation_alpha")))
    betas = iter(_numbers(attributes.get("activation_beta")))
    found = [_function(name, alphas, betas, op_type) for name in given]
    return [found[start : start + len(usual)] for start in range(0, len(found), len(usual))]


def _function(name: str, alphas: Iterator[float], betas: Iterator[float], op_type: str) -> Function:
    key = name.lower()
    if key in _PLAIN:
        return _PLAIN[key]
    if key in _WITH_ALPHA:
        one, default = _WITH_ALPHA[key]
        alpha = next(alphas, default)
        return lambda x: one(x, alpha)
    if key in _WITH_BOTH:
        both, first, second = _WITH_BOTH[key]
        alpha, beta = next(alphas, first), next(betas, second)
        return lambda x: both(x, alpha, beta)
    raise ValueError(f"{op_type} has no activation {name!r}")


def _numbers(values: Sequence[float] | None) -> list[float]:
    return [float(value) for value in values or ()]


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
