"""Inputs and outputs that are bound once and run several times."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from narrowpass_onnxruntime.session.errors import unsupported
from narrowpass_onnxruntime.session.metadata import NodeArg
from narrowpass_onnxruntime.session.values import (
    array_at,
    kind_of_element,
    ort_value_of,
    view_of,
)

Array = np.ndarray[Any, Any]


_WORTH_WRITING = 1 << 16
"""Bytes from which results are computed where they go: to copy fewer takes less time."""


class Runner(Protocol):
    """What a binding needs of a session."""

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any]) -> list[Any]:
        """Run on feeds; see `InferenceSession.run`."""

    def run_into(
        self, names: Sequence[str], feeds: Mapping[str, Any], out: Mapping[str, Any]
    ) -> list[Any]:
        """Run with outputs in arrays; see `InferenceSession.run_into`."""

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs that must be fed."""

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs with defaults."""


@dataclass(frozen=True)
class _Target:
    """Where an output goes.

    Attributes:
        array: the caller's memory; None for memory that each run allocates.
        ort_value: on that memory, where the caller bound one.
    """

    array: Array | None = None
    ort_value: Any = None


class IOBinding:
    """Inputs and outputs of a session, with the interface of ``onnxruntime.IOBinding``.

    Inputs are read where they lie, and outputs are written into the memory that was bound.

    Args:
        session: that runs them.
    """

    def __init__(self, session: Runner) -> None:
        self.session = session
        self._inputs: dict[str, Any] = {}
        self._targets: dict[str, _Target] = {}
        self._results: list[Any] = []

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array, which is read in each run.

        Raises:
            RuntimeError: an input that the model does not have, or no array.
        """
        self._check_input(name)
        if not isinstance(arr_on_cpu, np.ndarray):
            raise RuntimeError(
                f"input {name!r}: bind a numpy array, not {type(arr_on_cpu).__name__}"
            )
        self._inputs[name] = arr_on_cpu

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """Bind an input to memory of the CPU, which the caller keeps alive.

        Raises:
            RuntimeError: an input that the model does not have.
            NotImplemented: memory of another device, or elements of less than a byte.
        """
        self._check_input(name)
        _check_device(device_type)
        self._inputs[name] = array_at(buffer_ptr, kind_of_element(element_type), shape)

    def bind_ortvalue_input(self, name: str, ortvalue: Any) -> None:
        """Bind an input to an ``OrtValue``.

        Raises:
            RuntimeError: an input that the model does not have.
            NotImplemented: a value on another device.
        """
        self._check_input(name)
        self._inputs[name] = view_of(ortvalue)

    def synchronize_inputs(self) -> None:
        """Do nothing: everything lies in memory of the CPU."""

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output: in memory that the caller keeps alive, or in that of each run.

        Raises:
            ValueError: memory without a type or shape.
            NotImplemented: memory of another device, or elements of less than a byte.
        """
        _check_device(device_type)
        if buffer_ptr is None:
            self._targets[name] = _Target()
            return
        if element_type is None or shape is None:
            raise ValueError("`element_type` and `shape` are needed where `buffer_ptr` is given")
        self._targets[name] = _Target(array_at(buffer_ptr, kind_of_element(element_type), shape))

    def bind_ortvalue_output(self, name: str, ortvalue: Any) -> None:
        """Ask for an output in the memory of an ``OrtValue``.

        Raises:
            NotImplemented: a value on another device.
        """
        self._targets[name] = _Target(view_of(ortvalue), ortvalue)

    def synchronize_outputs(self) -> None:
        """Do nothing: everything lies in memory of the CPU."""

    def get_outputs(self) -> list[Any]:
        """Return the outputs of the last run as ``OrtValue``, in the order of their binding."""
        bound = [target.ort_value for target in self._targets.values()]
        if not self._results:
            return []
        return [
            ort_value_of(result) if value is None else value
            for result, value in zip(self._results, bound, strict=True)
        ]

    def get_outputs_as_ortvaluevector(self) -> Any:
        """Return the outputs of the last run as onnxruntime's vector."""
        from onnxruntime.capi.onnxruntime_pybind11_state import OrtValueVector

        vector = OrtValueVector()
        for value in self.get_outputs():
            vector.push_back(value._get_c_value())  # noqa: SLF001  # there is no other way
        return vector

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return copies of the outputs of the last run, in the order of their binding."""
        return [
            result.copy() if isinstance(result, np.ndarray) else result for result in self._results
        ]

    def clear_binding_inputs(self) -> None:
        """Forget the inputs."""
        self._inputs.clear()

    def clear_binding_outputs(self) -> None:
        """Forget the outputs, and the results of the last run."""
        self._targets.clear()
        self._results = []

    def run(self) -> None:
        """Run the session; results go where the outputs are bound.

        Raises:
            RuntimeError: no output is bound; an input that has no value, or that does not fit;
                an output of another type or shape than its memory.
        """
        if not self._targets:
            raise RuntimeError("no output is bound; call bind_output first")
        try:
            self._results = self._run([*self._targets])
        except Exception as problem:  # onnxruntime's classes have no base of their own
            raise RuntimeError(f"error in execution: {problem}") from problem

    def _run(self, names: list[str]) -> list[Any]:
        """Return the results, those that have memory in it."""
        out = {
            name: target.array for name, target in self._targets.items() if target.array is not None
        }
        if sum(array.nbytes for array in out.values()) > _WORTH_WRITING:
            return self.session.run_into(names, self._inputs, out)
        results = self.session.run(names, self._inputs)
        if not out:
            return results
        return [
            result if name not in out else _copied(name, result, out[name])
            for name, result in zip(names, results, strict=True)
        ]

    def _check_input(self, name: str) -> None:
        known = (*self.session.get_inputs(), *self.session.get_overridable_initializers())
        if all(arg.name != name for arg in known):
            raise RuntimeError(
                f"the model has no input {name!r}; its inputs: "
                f"{', '.join(arg.name for arg in known) or 'none'}"
            )


def _check_device(device_type: str) -> None:
    if device_type.lower() != "cpu":
        raise unsupported(
            f"memory of the device {device_type!r}", "copy it to the CPU, and bind that"
        )


def _copied(name: str, result: Any, target: Array) -> Array:
    """Copy a result into the memory of its output, and return that.

    Raises:
        ValueError: it has another type or shape.
    """
    if (
        not isinstance(result, np.ndarray)
        or result.dtype != target.dtype
        or result.shape != target.shape
    ):
        found = f"{result.dtype}{list(result.shape)}" if isinstance(result, np.ndarray) else "none"
        raise ValueError(
            f"output {name!r} is {found}, and its memory is {target.dtype}{list(target.shape)}; "
            "bind memory of that type and shape"
        )
    np.copyto(target, result)
    return target
