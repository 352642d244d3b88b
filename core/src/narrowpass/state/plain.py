"""Sessions for any backend: state is fed to each run, and taken from its outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError, DataError, UsageError
from narrowpass.state.session import Runner, Session

if TYPE_CHECKING:
    from narrowpass.runtime.arrays import Feeds, Outputs
    from narrowpass_ir.state import State
    from narrowpass_ir.verify import Signature, ValueSpec

Array = np.ndarray[Any, Any]


class PlainSession(Session):
    """A session of any program: each run computes its states anew.

    Args:
        program: that runs.
        states: that it keeps.
        reason: why the backend has no session of its own for these; empty where it never has.
    """

    _program: Runner

    def __init__(self, program: Runner, states: Sequence[State], reason: str = "") -> None:
        super().__init__(states)
        self.reason = reason
        self._program = program
        self._kept: dict[str, Array] = {}

    @property
    def length(self) -> int:
        """See `Session.length`."""
        grown = [s for s in self.states if s.axis is not None and s.input in self._kept]
        return max((self._kept[s.input].shape[s.axis or 0] for s in grown), default=0)

    def _run(self, feeds: Feeds, method: str, outputs: Sequence[str] | None) -> Outputs:
        signature = self._program.signature(method)
        given, updated = states_of(signature, self.states)
        fed = dict(feeds)
        for state, spec in given:
            kept = self._kept.get(state.input)
            fed[state.input] = initial(spec, state, signature, feeds) if kept is None else kept
        all_outputs = [spec.name for spec in signature.outputs]
        wanted = (
            [name for name in all_outputs if name not in {s.output for s in updated}]
            if outputs is None
            else list(outputs)
        )
        asked = dict.fromkeys((*wanted, *(state.output for state in updated)))
        whole = outputs is None and asked.keys() == set(all_outputs)
        results = self._program.run(fed, method, outputs=None if whole else tuple(asked))
        new = {state.input: results[state.output] for state in updated}
        if not given:
            self._kept = {}
        self._kept.update(new)
        states = {state.output for state in updated}
        return {n: results[n].copy() if n in states else results[n] for n in wanted}

    def _values(self) -> Mapping[str, Array]:
        return self._kept

    def _restore(self, values: Mapping[str, Array]) -> None:
        check_values(self._program, values)
        self._kept = dict(values)

    def _rewind(self, rows: int) -> None:
        for state in self.states:
            value = self._kept.get(state.input)
            if state.axis is not None and value is not None:
                kept = range(value.shape[state.axis] - rows)
                self._kept[state.input] = np.ascontiguousarray(value.take(kept, state.axis))

    def _mark(self, method: str) -> object:
        return dict(self._kept)  # no run writes to an array that it was fed

    def _return_to(self, mark: Any) -> None:
        self._kept = mark

    def _fork(self) -> Self:
        other = type(self)(self._program, self.states, self.reason)
        # No run writes to an array that it was fed.
        other._kept = dict(self._kept)  # noqa: SLF001  # of this class
        return other


def states_of(
    signature: Signature, states: Sequence[State]
) -> tuple[list[tuple[State, ValueSpec]], list[State]]:
    """Return the states that a method takes, with their inputs, and those that it yields."""
    inputs = {spec.name: spec for spec in signature.inputs}
    outputs = {spec.name for spec in signature.outputs}
    taken = [(state, inputs[state.input]) for state in states if state.input in inputs]
    return taken, [state for state in states if state.output in outputs]


def initial(spec: ValueSpec, state: State, signature: Signature, feeds: Feeds) -> Array:
    """Return a state that no run has set: zeros, without rows where it grows.

    Sizes with names are those that other feeds have for them. One other size that is unknown is the
    batch: the first axis of a feed whose size is not stated either; 1 where there is none.

    Raises:
        UsageError: more sizes are unknown.
    """
    fed = [
        (other.shape, feeds[other.name].shape)
        for other in signature.inputs
        if other.shape is not None and isinstance(feeds.get(other.name), np.ndarray)
    ]
    sizes = {
        dim: size
        for dims, found in fed
        for dim, size in zip(dims, found, strict=False)
        if isinstance(dim, str)
    }
    shape = [dim if isinstance(dim, int) else sizes.get(dim or "") for dim in spec.shape or ()]
    if state.axis is not None:
        shape[state.axis] = 0
    unknown = [axis for axis, size in enumerate(shape) if size is None]
    if len(unknown) > 1:
        raise UsageError(
            f"axes {', '.join(map(str, unknown))} of state {spec.name!r} have no size before the "
            "first run; call restore with an initial array"
        )
    if unknown:
        batches = [
            found[0] for dims, found in fed if len(dims) > 1 and not isinstance(dims[0], int)
        ]
        shape[unknown[0]] = next(iter(batches), 1)
    return np.zeros(shape, dtype_of(spec))


def dtype_of(spec: ValueSpec) -> np.dtype[Any]:
    """Return the numpy dtype of a state.

    Raises:
        BackendError: it is no tensor.
    """
    try:
        return np.dtype(ir.DataType[(spec.dtype or "").upper()].numpy())
    except (KeyError, TypeError) as error:
        raise BackendError(f"state {spec.name!r} is no tensor: {spec.dtype}") from error


def check_values(program: Runner, values: Mapping[str, Array]) -> None:
    """Check arrays against the inputs of their states.

    Raises:
        UsageError: the program is closed.
        DataError: one has another dtype, rank or size.
    """
    specs = {spec.name: spec for each in program.methods for spec in program.inputs(each)}
    if values and not specs:
        raise UsageError("the program is closed; compile the bundle again to run it")
    for name, value in values.items():
        _check_value(specs[name], value)


def _check_value(spec: ValueSpec, value: Array) -> None:
    """Check an array against the input of its state.

    Raises:
        DataError: it has another dtype, rank or size.
    """
    shape = spec.shape
    fits = value.dtype == dtype_of(spec) and (shape is None or len(shape) == value.ndim)
    pairs = zip(shape or (), value.shape, strict=False)
    if not fits or any(isinstance(dim, int) and dim != size for dim, size in pairs):
        takes = "any shape" if shape is None else str(list(shape))
        raise DataError(
            f"state {spec.name!r} is {spec.dtype} of {takes}, not {value.dtype} of "
            f"{list(value.shape)}"
        )
