"""If, Loop, Scan and SequenceMap as the specification says, in place of onnx's.

Each class replaces the one of the same name in `onnx.reference`; its docstring says what differs.
The evaluator finds the attributes' names and defaults through the class's name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx.reference.op_run import OpRun

Array = np.ndarray[Any, Any]

_BATCHED_SCAN_UNTIL = 9


class FreeOutputs(OpRun):
    """An operator that may return None: the empty optional."""

    def _check_and_fix_outputs(self, res: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(np.array(value) if np.isscalar(value) else value for value in res)


class _WithSubgraph(FreeOutputs):
    """An operator whose subgraph reads values of the enclosing graph."""

    def need_context(self) -> bool:
        return True


class If(_WithSubgraph):
    """Returns an empty optional; onnx's refuses it."""

    def _run(
        self,
        condition: Array,
        context: Mapping[str, Any],
        attributes: Any = None,
        then_branch: Any = None,
        else_branch: Any = None,
    ) -> tuple[Any, ...]:
        branch = then_branch if condition.item() else else_branch
        return tuple(branch.run(None, dict(context), attributes=attributes))


class Loop(_WithSubgraph):
    """Stacks scan outputs along a new first axis, as the specification says.

    onnx's concatenates them along their first axis. This one also returns scan outputs of a loop
    without iterations, lets formal inputs hide outer values, and takes optional carried
    values.
    """

    def _run(
        self,
        trips: Array | None = None,
        condition: Array | None = None,
        *carried: Any,
        context: Mapping[str, Any],
        attributes: Any = None,
        body: Any = None,
    ) -> tuple[Any, ...]:
        states = list(carried)
        formals = body.input_names
        rows: list[list[Any]] = [[] for _ in body.output_names[1 + len(states) :]]
        limit = None if trips is None else int(trips.item())
        going = condition is None or bool(condition.item())
        count = 0
        while going and (limit is None or count < limit):
            feeds = dict(context)
            feeds.update(zip(formals, [np.array(count), np.array(going), *states], strict=True))
            results = body.run(None, feeds, attributes=attributes)
            going = bool(results[0].item())
            states = results[1 : 1 + len(states)]
            for row, value in zip(rows, results[1 + len(states) :], strict=True):
                row.append(value)
            count += 1
        types = body.output_types[1 + len(states) :]
        return (*states, *(_stack(row, kind) for row, kind in zip(rows, types, strict=True)))


class Scan(_WithSubgraph):
    """Takes axes, directions, and the batches and lengths of opset 8; onnx's takes none of them."""

    def _run(
        self,
        *inputs: Any,
        context: Mapping[str, Any],
        attributes: Any = None,
        body: Any = None,
        num_scan_inputs: int = 1,
        **options: Sequence[int] | None,
    ) -> tuple[Any, ...]:
        def step(feeds: Sequence[Any]) -> list[Any]:
            values = dict(context)
            values.update(zip(body.input_names, feeds, strict=True))
            results: list[Any] = body.run(None, values, attributes=attributes)
            return results

        types = body.output_types
        if self.run_params["opsets"][""] < _BATCHED_SCAN_UNTIL:
            directions = options.get("directions")
            return _batched_scan(step, inputs, num_scan_inputs, directions, types)
        scans = [
            _oriented(np.moveaxis(value, _entry(options.get("scan_input_axes"), index), 0), flip)
            for index, value in enumerate(inputs[len(inputs) - num_scan_inputs :])
            for flip in [_entry(options.get("scan_input_directions"), index)]
        ]
        states, stacks = _scan(step, inputs[: len(inputs) - num_scan_inputs], scans, types)
        return (
            *states,
            *(
                np.moveaxis(
                    _oriented(stack, _entry(options.get("scan_output_directions"), index)),
                    0,
                    _entry(options.get("scan_output_axes"), index),
                )
                for index, stack in enumerate(stacks)
            ),
        )


def _entry(values: Sequence[int] | None, index: int) -> int:
    return values[index] if values else 0


def _oriented(value: Array, backwards: int) -> Array:
    return value[::-1] if backwards else value


def _scan(
    step: Callable[[Sequence[Any]], list[Any]],
    states: Sequence[Any],
    scans: Sequence[Array],
    types: Sequence[Any],
) -> tuple[list[Any], list[Array]]:
    states = list(states)
    rows: list[list[Any]] = [[] for _ in types[len(states) :]]
    for slices in zip(*scans, strict=True):
        results = step([*states, *slices])
        states = results[: len(states)]
        for row, value in zip(rows, results[len(states) :], strict=True):
            row.append(value)
    kinds = types[len(states) :]
    return states, [_stack(row, kind) for row, kind in zip(rows, kinds, strict=True)]


def _batched_scan(
    step: Callable[[Sequence[Any]], list[Any]],
    inputs: Sequence[Any],
    scan_count: int,
    directions: Sequence[int] | None,
    types: Sequence[Any],
) -> tuple[Any, ...]:
    """Run a `Scan` of opset 8: axis 0 is the batch, axis 1 the sequence."""
    lengths, *values = inputs
    initial, scans = values[: len(values) - scan_count], values[len(values) - scan_count :]
    longest = scans[0].shape[1]
    batches = []
    for batch in range(scans[0].shape[0]):
        length = longest if lengths is None else int(lengths[batch])
        parts = [
            _oriented(scan[batch][:length], _entry(directions, index))
            for index, scan in enumerate(scans)
        ]
        states, stacks = _scan(step, [state[batch] for state in initial], parts, types)
        padded = [
            np.concatenate([stack, np.zeros((longest - length, *stack.shape[1:]), stack.dtype)])
            for stack in stacks
        ]
        batches.append([*states, *padded])
    return tuple(np.stack(column) for column in zip(*batches, strict=True))


def _stack(rows: Sequence[Array], kind: onnx.TypeProto) -> Array:
    """Stack the scan outputs of all iterations; without any, return an empty array."""
    if rows:
        return np.stack(rows)
    tensor = kind.tensor_type
    if not tensor.elem_type:
        raise ValueError("no iteration ran, and the type of the scan output is not declared")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    return np.zeros((0, *(dim.dim_value for dim in tensor.shape.dim)), dtype)


class SequenceMap(_WithSubgraph):
    """Lets the body read outer values, and maps over empty and several sequences."""

    def _run(
        self,
        sequence: list[Any],
        *others: Any,
        context: Mapping[str, Any],
        attributes: Any = None,
        body: Any = None,
    ) -> tuple[Any, ...]:
        results: list[list[Any]] = [[] for _ in body.output_names]
        for index, element in enumerate(sequence):
            rest = (other[index] if isinstance(other, list) else other for other in others)
            feeds = dict(context)
            feeds.update(zip(body.input_names, [element, *rest], strict=True))
            for result, value in zip(
                results, body.run(None, feeds, attributes=attributes), strict=True
            ):
                result.append(value)
        return tuple(results)
