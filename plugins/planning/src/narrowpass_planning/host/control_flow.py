"""If, Loop and Scan on the host; their subgraphs are compiled as methods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError
from narrowpass.runtime.backend import NodePlan
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.graph.op import Op
from narrowpass_planning.host.bodies import Body, Compile, Formal
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.loop import LoopSignature, NativeLoopFactory, ScanInput
from narrowpass_planning.plan.shapes import Shapes

Array = np.ndarray[Any, Any]

_INT64_MAX = (1 << 63) - 1


class Iterations:
    """Iterations of a Loop or a Scan.

    Args:
        body: what an iteration runs.
        states: the number of loop-carried values.
        scans: the number of scan inputs.
        numbered: whether the body has an iteration number and a condition, as that of Loop.

    Attributes:
        states: the number of loop-carried values.
        first: which output of the body is the first that is stacked.
    """

    def __init__(self, body: Body, states: int, scans: int, *, numbered: bool) -> None:
        self._body = body
        self._number, self._true = np.zeros((), np.int64), np.ones((), np.bool_)
        self.states = max(0, states)
        formals, outputs = list(body.formals), list(body.outputs)
        number, going = formals[:2] if numbered else ("", "")
        condition = outputs.pop(0) if numbered else ""
        formals = formals[2:] if numbered else formals
        self.first = self.states + numbered
        self._roles = LoopSignature(
            number,
            going,
            tuple(formals[: self.states]),
            tuple(formals[self.states :]),
            condition,
            tuple(outputs[: self.states]),
            tuple(outputs[self.states :]),
        )

    def run(
        self,
        initial: Sequence[Any],
        scans: Sequence[ScanInput],
        limit: int | None,
        values: Mapping[str, Any],
        pool: Pool,
    ) -> tuple[Sequence[Any], Sequence[Array], Sequence[bool]]:
        """Run at least one iteration.

        Args:
            initial: the first state.
            scans: scan inputs, each of `limit` slices.
            limit: the most iterations; None for as many as the condition says.
            values: of the graph around the body, by name.
            pool: the threads.

        Returns:
            The last state, the stacked outputs, and for each state whether it was allocated here.
        """
        roles = self._roles
        feeds = {name: values[name] for name in self._body.reads}
        feeds.update(zip(roles.states, initial, strict=True))
        feeds.update((name, scan.array[0]) for name, scan in zip(roles.slices, scans, strict=True))
        if roles.number:
            feeds[roles.number], feeds[roles.going] = self._number, self._true
        if limit != 1:
            repeated = self._body.repeated(feeds, roles, pool)
            if repeated is not None:
                known = limit is not None
                most = _INT64_MAX if limit is None else limit
                states, stacks = repeated.run(feeds, scans, most, pool, known=known)
                return states, stacks, [True] * len(states)
        return self._one_by_one(feeds, scans, limit, pool)

    def _one_by_one(
        self,
        feeds: dict[str, Any],
        scans: Sequence[ScanInput],
        limit: int | None,
        pool: Pool,
    ) -> tuple[Sequence[Any], Sequence[Array], Sequence[bool]]:
        roles, body = self._roles, self._body
        rows: list[list[Any]] = [[] for _ in roles.scanned]
        count = 0
        going = True
        results: list[Any] = []
        while going and (limit is None or count < limit):
            if roles.number:
                feeds[roles.number] = np.array(count, np.int64)
            for name, scan in zip(roles.slices, scans, strict=True):
                feeds[name] = scan.array[-1 - count if scan.backwards else count]
            results = body.run(feeds, pool)
            if roles.condition:
                going = bool(results.pop(0).item())
            feeds.update(zip(roles.states, results, strict=False))
            for row, value in zip(rows, results[self.states :], strict=True):
                row.append(value)
            count += 1
        fresh = body.fresh[self.first - self.states :]
        return results[: self.states], [np.stack(row) for row in rows], fresh[: self.states]


Results = tuple[Sequence[Any], Sequence[bool]]
"""The outputs of an operator, and whether each was allocated by it, so that it aliases no other."""

_BODIES = {"If": ("then_branch", "else_branch"), "Loop": ("body",), "Scan": ("body",)}


class ControlFlow:
    """An If, a Loop or a Scan.

    Args:
        op: the operation.
        facts: of its graph.
        model: has the operator sets.
        compile_: compiles a model.
        repeat: what runs many iterations in one call; None to run them one by one.

    Attributes:
        name: the node's.
        inputs: names of the values that it and its subgraphs read.
        outputs: names of its outputs.
        kernel: what runs it, for `explain`.
        fresh: names of the values that the last run allocated: they alias no others.
    """

    kernel = "control flow"

    def __init__(
        self,
        op: Op,
        facts: Facts,
        model: ir.Model,
        compile_: Compile,
        repeat: NativeLoopFactory | None = None,
    ) -> None:
        node = op.nodes[0]
        self._op = op
        self.fresh: set[str] = set()
        self._bodies = [
            Body(
                node.attributes[name].as_graph(),
                _formals(op, facts),
                facts,
                model,
                compile_,
                repeat,
            )
            for name in _BODIES[op.kind]
        ]
        self.name = node.name or next((v.name for v in op.outputs if v.name), "")
        self._operands = tuple("" if v is None else v.name or "" for v in op.inputs)
        self._results = tuple(value.name or "" for value in op.outputs)
        self.outputs = tuple(name for name in self._results if name)
        read = [name for body in self._bodies for name in body.reads]
        self.inputs = tuple(dict.fromkeys([*filter(None, self._operands), *read]))
        if op.kind == "If":
            self._run = self._branch
            return
        (body,) = self._bodies
        if op.kind == "Loop":
            self._iterations = Iterations(body, len(self._operands) - 2, 0, numbered=True)
            self._run = self._loop
        else:
            scans = int(op.attributes["num_scan_inputs"])
            lengths = 1 if op.version == 8 else 0
            states = len(self._operands) - scans - lengths
            self._iterations = Iterations(body, states, scans, numbered=False)
            self._run = self._scan_batches if lengths else self._scan
        self._empty = [_dtype(value) for value in op.outputs[self._iterations.states :]]

    @property
    def plans(self) -> tuple[NodePlan, ...]:
        """Where the nodes of its subgraphs run."""
        return tuple(plan for body in self._bodies for plan in body.plans)

    def run(self, values: dict[str, Any], shapes: Shapes, pool: Pool) -> None:
        """Run it; its outputs go to `values`, and their shapes to `shapes`.

        Raises:
            BackendError: it fails; the message names it.
        """
        given = {n: values[n] if n in values else shapes.value(n) for n in self.inputs}
        operands: list[Any] = [given[name] if name else None for name in self._operands]
        try:
            results, fresh = self._run(operands, given, pool)
        except (AttributeError, BackendError, LookupError, ValueError) as error:
            raise BackendError(f"in {self._op.kind} {self.name!r}: {error}") from error

        self.fresh.clear()
        for name, value, new in zip(self._results, results, fresh, strict=True):
            if name:
                values[name] = value
                if new:
                    self.fresh.add(name)
                if isinstance(value, np.ndarray):
                    shapes.shapes[name] = value.shape

    def _branch(self, operands: Sequence[Any], values: Mapping[str, Any], pool: Pool) -> Results:
        body = self._bodies[0 if operands[0].item() else 1]
        return body.run({name: values[name] for name in body.reads}, pool), body.fresh

    def _loop(self, operands: Sequence[Any], values: Mapping[str, Any], pool: Pool) -> Results:
        limit = None if operands[0] is None else int(operands[0].item())
        going = len(operands) < 2 or operands[1] is None or bool(operands[1].item())
        if not going or (limit is not None and limit <= 0):
            empty = [self._nothing(index) for index in range(len(self._empty))]
            states = operands[2:]
            return [*states, *empty], [False] * len(states) + [True] * len(empty)
        states, stacks, fresh = self._iterations.run(operands[2:], (), limit, values, pool)
        return [*states, *stacks], [*fresh, *(True for _ in stacks)]

    def _scan(self, operands: Sequence[Any], values: Mapping[str, Any], pool: Pool) -> Results:
        count = self._iterations.states
        initial, given = operands[:count], operands[count:]
        ways = zip(given, *self._ways("input", len(given)), strict=True)
        scans = [ScanInput(_first(array, axis), backwards) for array, axis, backwards in ways]
        states, given, fresh = self._scanned(initial, scans, values, pool)
        ways = zip(given, *self._ways("output", len(given)), strict=True)
        outputs = [_last(stack, axis, backwards) for stack, axis, backwards in ways]
        return [*states, *outputs], [*fresh, *(True for _ in outputs)]

    def _ways(self, what: str, count: int) -> tuple[Sequence[int], Sequence[bool]]:
        """Return the axes and the directions of scan inputs or outputs."""
        axes = self._op.get(f"scan_{what}_axes", None) or [0] * count
        return axes, list(map(bool, self._op.get(f"scan_{what}_directions", None) or [0] * count))

    def _scan_batches(
        self, operands: Sequence[Any], values: Mapping[str, Any], pool: Pool
    ) -> Results:
        """Run a Scan of operator set 8: axis 0 is of batches, axis 1 of slices."""
        lengths, *rest = operands
        count = self._iterations.states
        initial, given = rest[:count], rest[count:]
        directions = self._op.get("directions", None) or [0] * len(given)
        longest = given[0].shape[1]
        batches = []
        for batch in range(given[0].shape[0]):
            length = longest if lengths is None else int(lengths[batch])
            if not 0 <= length <= longest:
                raise ValueError(f"sequence length {length} is not within 0 and {longest}")
            scans = [
                ScanInput(np.ascontiguousarray(array[batch][:length]), bool(backwards))
                for array, backwards in zip(given, directions, strict=True)
            ]
            first = [np.ascontiguousarray(state[batch]) for state in initial]
            states, stacks, _ = self._scanned(first, scans, values, pool)
            padded = [
                np.concatenate([s, np.zeros((longest - length, *s.shape[1:]), s.dtype)])
                for s in stacks
            ]
            batches.append([*states, *padded])
        columns = [np.stack(column) for column in zip(*batches, strict=True)]
        return columns, [True] * len(columns)

    def _scanned(
        self,
        initial: Sequence[Any],
        scans: Sequence[ScanInput],
        values: Mapping[str, Any],
        pool: Pool,
    ) -> tuple[Sequence[Any], Sequence[Array], Sequence[bool]]:
        lengths = {len(scan.array) for scan in scans}
        if len(lengths) != 1:
            raise ValueError(f"scan inputs have different lengths: {sorted(lengths)}")
        (length,) = lengths
        if not length:
            empty = [self._nothing(index) for index in range(len(self._empty))]
            return initial, empty, [False] * len(initial)
        return self._iterations.run(initial, scans, length, values, pool)

    def _nothing(self, index: int) -> Array:
        """Return a scan output of no iterations: length 0, with the type of a slice."""
        graph = self._bodies[0].declared[self._iterations.first + index]
        dtype, dims = graph
        dtype = dtype or self._empty[index] or np.dtype(np.float32)
        return np.zeros((0, *dims), dtype)


def _formals(op: Op, facts: Facts) -> list[Formal]:
    """Return the types of the inputs of a body."""
    if op.kind == "If":
        return []
    if op.kind == "Loop":
        states = [
            Formal(_type(value, facts), _unsized(facts.rank(value)), index + 1)
            for index, value in enumerate(op.inputs[2:])
        ]
        number, going = ir.TensorType(ir.DataType.INT64), ir.TensorType(ir.DataType.BOOL)
        return [Formal(number, ()), Formal(going, ()), *states]
    batched = op.version == 8
    given = op.inputs[1:] if batched else op.inputs
    first = len(given) - int(op.attributes["num_scan_inputs"])
    axes = op.get("scan_input_axes", None) or [0] * (len(given) - first)
    formals = []
    for index, value in enumerate(given):
        dims = facts.dims(value)
        if dims is not None and batched:
            dims = dims[1:]
        if dims is not None and index >= first:
            axis = axes[index - first] % max(1, len(dims))
            dims = (*dims[:axis], *dims[axis + 1 :])
        formals.append(Formal(_type(value, facts), dims))
    return formals


def _type(value: ir.Value | None, facts: Facts) -> ir.TypeProtocol | None:
    dtype = facts.dtype(value)
    if dtype is not None:
        return ir.TensorType(dtype)
    return None if value is None else value.type


def _first(array: Array, axis: int) -> Array:
    """Return an array with an axis as its first one, dense."""
    return np.ascontiguousarray(array if axis == 0 else np.moveaxis(array, axis, 0))


def _last(stack: Array, axis: int, backwards: bool) -> Array:
    """Return a stack of slices as the output that it is, dense."""
    turned = stack[::-1] if backwards else stack
    return np.ascontiguousarray(turned if axis == 0 else np.moveaxis(turned, 0, axis))


def _unsized(rank: int | None) -> list[int | str | None] | None:
    return None if rank is None else [None] * rank


def _dtype(value: ir.Value) -> np.dtype[Any] | None:
    return None if value.dtype is None else value.dtype.numpy()


def can_run(op: Op) -> bool:
    """Return whether `ControlFlow` runs an operation."""
    if len(op.nodes) != 1 or op.nodes[0].domain or op.kind not in _BODIES:
        return False
    attributes = op.nodes[0].attributes
    bodies = [attributes.get(name) for name in _BODIES[op.kind]]
    if any(body is None or body.is_ref() for body in bodies):
        return False
    graphs = [body.as_graph() for body in bodies if body is not None]
    values = [*op.inputs, *op.outputs]
    values += [value for graph in graphs for value in (*graph.inputs, *graph.outputs)]
    # Optionals go to the reference evaluator.
    return all(
        value is None or isinstance(value.type, ir.TensorType | ir.SequenceType | None)
        for value in values
    )
