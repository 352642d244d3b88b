"""LSTM, GRU and RNN: a GEMM of all rows with the input weights, then the recurrence."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import AttributesError, BackendError
from narrowpass_planning.graph.facts import Array, Facts
from narrowpass_planning.plan.step import Run, Shape, Sizing, Slot, elements
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.lower.builder import Builder, identity
from narrowpass_xnn_cpu.lower.fusion.matching import producer
from narrowpass_xnn_cpu.lower.matmul.computations import ConstantMatMul
from narrowpass_xnn_cpu.lower.matmul.constant import rows_for
from narrowpass_xnn_cpu.lower.op import Op, check_dtype, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp, PackedStep
from narrowpass_xnn_cpu.lowered.record import record
from narrowpass_xnn_cpu.native.own.recurrent import (
    FUNCTIONS,
    GATES,
    Activation,
    Cell,
    Recurrence,
    zeros_weight,
)
from narrowpass_xnn_cpu.native.problems.quantization import UnfitError, zero_points
from narrowpass_xnn_cpu.native.table.row import Selection
from narrowpass_xnn_cpu.native.target import Target
from narrowpass_xnn_cpu.native.weights_cache import Session

_USUAL = {
    "LSTM": ("Sigmoid", "Tanh", "Tanh"),
    "GRU": ("Sigmoid", "Tanh"),
    "RNN": ("Tanh",),
}
_ALPHAS = {
    "elu": 1.0,
    "leakyrelu": 0.01,
    "thresholdedrelu": 1.0,
    "affine": 1.0,
    "hardsigmoid": 0.2,
    "scaledtanh": 1.0,
}
_BETAS = {"affine": 0.0, "hardsigmoid": 0.5, "scaledtanh": 1.0}
_DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


@record
class Recurrent(Computation):
    """All time steps of a recurrence; the result is Y, Y_h and Y_c, concatenated.

    Operands are the gates, float32 [steps, batch, directions * gates * hidden], then those of
    `others`. The result is float32, of one axis.

    Attributes:
        cell: the cell of one time step.
        weights: [directions, gates * hidden, hidden], float32 or narrower.
        extra: see `Recurrence`.
        stored: int8 weights [directions * gates * hidden, hidden] where states are quantized
            dynamically; else None.
        others: which of ``hidden``, ``cell`` and ``lengths`` are operands, in order.
        wanted: which of ``y``, ``hidden`` and ``cell`` are in the result.
        batch_first: whether the batch is the first axis of Y and of states.
    """

    mnemonic = "recurrent"
    cell: Cell
    weights: Weight
    extra: Weight | None
    stored: Quantized | None
    others: tuple[str, ...]
    wanted: tuple[str, ...]
    batch_first: bool

    def kernel_name(self, op: LoweredOp, packed: Recurrence) -> str:
        """See `Computation.kernel_name`."""
        return f"recurrence {'int8 ' if packed.quantized else ''}{self.cell.kind}"

    def select(self, op: LoweredOp, target: Target) -> Selection:
        """See `Computation.select`."""
        if self.stored is not None:
            return Selection(
                f"own recurrence int8 {self.cell.kind} ({Recurrence.call})",
                "gates of 8 or 16 hidden units, by K-groups of 4",
                "a quarter of the bytes, which every step reads again",
            )
        return Selection(
            f"own recurrence {self.cell.kind} ({Recurrence.call})",
            "gates of 8 or 16 hidden units",
            "all steps in one call; XNNPACK has no recurrence",
        )

    def pack(self, op: LoweredOp, session: Session | None) -> Recurrence:
        """See `Computation.pack`: with int8 weights where accumulators have the headroom."""
        weights, stored = self.weights, self.stored
        if stored is not None:
            directions, rows, _ = weights.shape
            sizes = directions, rows
            scales = stored.scale.then(
                f"rows of gates {directions} {rows}",
                lambda a: np.broadcast_to(a.reshape(-1), (directions * rows,)).reshape(sizes),
                sizes,
            )
            try:
                zeros = zero_points(stored, directions * rows)
                integers = stored.integers.reshape(*weights.shape)
                return Recurrence(self.cell, integers, self.extra, session, scales, zeros)
            except UnfitError:  # too many hidden units
                pass
        return Recurrence(self.cell, weights.cast(np.dtype(np.float32)), self.extra, session)

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        recurrence = step.packed
        (steps, batch, _), directions, hidden = shapes[0], recurrence.directions, recurrence.hidden
        states = (batch, directions, hidden) if self.batch_first else (directions, batch, hidden)
        for name, shape in zip(self.others, shapes[1:], strict=True):
            expected = (batch,) if name == "lengths" else states
            if shape != expected:
                raise BackendError(f"its {name} is {list(shape)}, not {list(expected)}")
        sizes = sizes_of(steps, batch, directions, hidden)
        offsets = offsets_of(self.wanted, sizes)
        total = sum(sizes[name] for name in self.wanted)
        if not total:
            return Run((0,))
        if not steps:
            return Run((total,), constant=np.zeros(total, np.float32))
        if self.batch_first:
            strides = directions * hidden, hidden, steps * directions * hidden
            state_strides = hidden, directions * hidden
        else:
            strides = directions * batch * hidden, batch * hidden, hidden
            state_strides = batch * hidden, hidden
        places: dict[str, Any] = {"y_strides": strides, "state_strides": state_strides}
        for name in self.wanted:
            places[f"has_{name}"] = 1
            if name != "y":
                places[f"{name}_offset"] = offsets[name]
        inputs = {name: index + 1 for index, name in enumerate(self.others)}
        params = recurrence.reshape(steps, batch, sizing.pool, inputs, places)
        return Run((total,), recurrence.call, params=params, workspace=recurrence.workspace)


def sizes_of(steps: int, batch: int, directions: int, hidden: int) -> dict[str, int]:
    """Return the number of elements of each result."""
    state = batch * directions * hidden
    return {"y": steps * state, "hidden": state, "cell": state}


def offsets_of(wanted: Sequence[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the offset of each wanted result in the concatenation, in elements."""
    offsets, total = {}, 0
    for name in wanted:
        offsets[name] = total
        total += sizes[name]
    return offsets


@record
class RecurrentResult(Computation):
    """A view of one result of a recurrence.

    Operands are the result of `Recurrent` and its gates.

    Attributes:
        name: ``y``, ``hidden`` or ``cell``.
        wanted: the concatenated results.
        sizes: directions and hidden units.
        batch_first: whether the batch is the first axis.
    """

    mnemonic = "recurrent_result"
    kernel = "view"
    name: str
    wanted: tuple[str, ...]
    sizes: tuple[int, int]
    batch_first: bool

    def size(self, step: PackedStep, shapes: Sequence[Shape], sizing: Sizing) -> Run:
        """See `Computation.size`."""
        (steps, batch, _), (directions, hidden) = shapes[1], self.sizes
        offset = offsets_of(self.wanted, sizes_of(steps, batch, directions, hidden))[self.name]
        state = (batch, directions, hidden) if self.batch_first else (directions, batch, hidden)
        shape: Shape = state
        if self.name == "y":
            shape = (batch, steps, *state[1:]) if self.batch_first else (steps, *state)
        view = offset * step.op.output.dtype.itemsize
        return Run(shape, view=view) if elements(shape) else Run(shape)


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _cell(op: Op, directions: int) -> Cell:
    """Read the attributes.

    Raises:
        AttributesError: activations that the operator does not have.
    """
    usual = _USUAL[op.kind]
    names = [_text(name).lower() for name in op.get("activations", ()) or ()]
    names = names or [name.lower() for name in usual * directions]
    if op.kind == "RNN":
        names = names[:directions]  # its default names two, for one direction as well
    if len(names) != len(usual) * directions:
        raise AttributesError(f"{len(names)} activations are not those of {directions} directions")
    alphas, betas = iter(op.get("activation_alpha", ())), iter(op.get("activation_beta", ()))
    functions = [_function(name, alphas, betas) for name in names]
    kind = "GRU after" if op.kind == "GRU" and op.get("linear_before_reset", 0) else op.kind
    clip = float(op.get("clip", 0.0))
    count = len(usual)
    return Cell(
        kind,
        [functions[start : start + count] for start in range(0, len(functions), count)],
        backwards=_direction(op) == "reverse",
        clip=clip if clip > 0 else math.inf,
        coupled=op.kind == "LSTM" and bool(op.get("input_forget", 0)),
    )


def _function(name: str, alphas: Iterator[float], betas: Iterator[float]) -> Activation:
    if name not in FUNCTIONS:
        raise AttributesError(f"it has no activation {name!r}")
    alpha = float(next(alphas, _ALPHAS[name])) if name in _ALPHAS else 0.0
    beta = float(next(betas, _BETAS[name])) if name in _BETAS else 0.0
    return Activation(name, alpha, beta)


def _direction(op: Op) -> str:
    return _text(op.get("direction", "forward"))


def _check(op: Op, facts: Facts) -> str | None:
    reason = check_floats(op, facts, 1)
    if reason:
        return reason
    if op.version < 7:
        return "its operator set is older than 7"
    if facts.rank(op.input(0)) != 3:
        return "its input has not three dimensions"
    direction = _direction(op)
    if direction not in _DIRECTIONS:
        return f"it has no direction {direction!r}"
    directions = _DIRECTIONS[direction]
    weights = op.required(1), op.required(2)
    for value in (*weights, op.input(3), op.input(7)):
        if value is not None and not facts.is_constant(value):
            return f"{value.name!r} is no constant"
        if value is not None and not facts.is_float(value):
            return f"{value.name!r} is not float32 or narrower"
    for value in (op.input(5), op.input(6)):
        found = None if value is None else check_dtype(value, facts, ir.DataType.FLOAT)
        if found:
            return found
        if value is not None and facts.rank(value) != 3:
            return f"{value.name!r} has not three dimensions"
    if op.input(4) is not None:
        found = check_dtype(op.required(4), facts, ir.DataType.INT32)
        if found:
            return found
    try:
        cell = _cell(op, directions)
    except AttributesError as error:
        return str(error)
    rows, hidden = (facts.dims(weights[1]) or (0, 0, 0))[1:]
    gates = GATES[cell.kind]
    if not isinstance(hidden, int) or hidden < 1 or rows != gates * hidden:
        return "its recurrence weights have another shape than its operator"
    for index, shape in (
        (1, (directions, gates * hidden)),
        (2, (directions, gates * hidden, hidden)),
        (3, (directions, 2 * gates * hidden)),
        (7, (directions, 3 * hidden)),
    ):
        value = op.input(index)
        dims = None if value is None else facts.dims(value)
        if dims is not None and tuple(dims[: len(shape)]) != shape:
            return f"input {index} is {list(dims)}; it should begin with {list(shape)}"
    if 0 in (facts.dims(weights[0]) or ()):
        return "its input weights are empty"
    return None


def _bias(op: Op, facts: Facts, kind: str, directions: int, hidden: int) -> Weight | None:
    """Return the bias of the input GEMM: [directions * gates * hidden]."""
    value = op.input(3)
    if value is None:
        return None
    size = GATES[kind] * hidden

    def combine(bias: Array) -> Array:
        both = bias[:, :size] + bias[:, size:]
        if kind == "GRU after":  # the reset gate applies to the bias of the recurrence too
            both[:, 2 * hidden :] = bias[:, 2 * hidden : size]
        return both.reshape(-1)

    return facts.weight(value).then(f"gates of {kind}", combine, [directions * size])


def _extra(op: Op, facts: Facts, kind: str, directions: int, hidden: int) -> Weight | None:
    if kind == "GRU after":
        shape = directions, 1, hidden
        if op.input(3) is None:
            return zeros_weight(shape)
        return facts.weight(op.required(3)).then(
            "bias of the recurrence", lambda bias: bias[:, None, -hidden:], shape
        )
    value = op.input(7)
    if kind != "LSTM" or value is None:
        return None
    return facts.weight(value).reshape(directions, 3, hidden)


def _integers(value: ir.Value, facts: Facts, directions: int) -> Quantized | None:
    """Return int8 weights [directions, rows, columns] as [directions * rows, columns], if stored.

    Models with scales per direction store that matrix and a Reshape.
    """
    weight = facts.stored(value)
    _, rows, columns = weight.shape
    source = producer(value, "Reshape")
    given = None if source is None else source.inputs[0]
    if weight.quantized is None and given is not None and facts.is_constant(given):
        weight = facts.stored(given)
    return weight.reshape(directions * rows, columns).quantized


def _int8_states(op: Op, builder: Builder) -> Quantized | None:
    """Return int8 recurrence weights, if the model requests dynamic quantization and they fit."""
    value = op.required(2)
    directions = builder.facts.stored(value).shape[0]
    stored = _integers(value, builder.facts, directions) if op.activations == "dynamic" else None
    if stored is None or stored.integers.dtype != np.int8 or stored.axis != 0:
        return None
    return stored


def _recurrent(op: Op, builder: Builder) -> None:
    facts = builder.facts
    directions = _DIRECTIONS[_direction(op)]
    cell = _cell(op, directions)
    batch_first = bool(op.get("layout", 0))
    hidden = facts.stored(op.required(2)).shape[-1]
    kernel = facts.stored(op.required(1))
    size = kernel.shape[-1]
    kernel = kernel.reshape(directions * GATES[cell.kind] * hidden, size)
    kernel = dataclasses.replace(kernel, quantized=_integers(op.required(1), facts, directions))
    kernel = kernel.transpose(1, 0)
    given = op.required(0)
    dims = facts.dims(given) or ()
    known = [dim for dim in dims[:2] if isinstance(dim, int)]
    matmul = ConstantMatMul(
        weight=kernel,
        bias=_bias(op, facts, cell.kind, directions, hidden),
        rows=math.prod(known) if len(known) == 2 else None,
        accumulate=op.accumulate,
        activations=op.activations,
        unfit=builder.unfit.get(op.output.name or "", ""),
    )
    rows = builder.slot_of(given, (1, 0, 2) if batch_first else None)
    gates = Slot(f"{given.name} (gates)", np.dtype(np.float32))
    builder.emit(matmul, [rows_for(builder, rows, matmul)], gates)
    others = {
        name: builder.slot_of(value)
        for name, value in (
            ("hidden", op.input(5)),
            ("cell", op.input(6) if cell.kind == "LSTM" else None),
            ("lengths", op.input(4)),
        )
        if value is not None
    }
    results = {
        name: value
        for name, value in zip(("y", "hidden", "cell"), op.outputs, strict=False)
        if value.name and (value.uses() or value.name in facts.needed)
    }
    whole = Slot(f"{op.required(0).name} (states)", np.dtype(np.float32))
    recurrent = Recurrent(
        cell,
        facts.stored(op.required(2)),
        _extra(op, facts, cell.kind, directions, hidden),
        _int8_states(op, builder),
        tuple(others),
        tuple(results),
        batch_first,
    )
    builder.emit(recurrent, [gates, *others.values()], whole)
    for name, value in results.items():
        view = RecurrentResult(name, tuple(results), (directions, hidden), batch_first)
        builder.compute(view, [whole, gates], value, identity(4 if name == "y" else 3))


RULES: tuple[Rule, ...] = (*rules("LSTM", "GRU", "RNN", lower=_recurrent, check=_check),)
