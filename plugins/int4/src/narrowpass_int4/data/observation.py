"""What weights are multiplied with on data, group by group, as the narrow layers compute it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx_ir as ir

from narrowpass import Samples
from narrowpass_int4.data.groups import Group, last_place
from narrowpass_int4.data.hessian import Hessian, columns_of
from narrowpass_int4.data.segments import Segments
from narrowpass_int4.data.states import memory_limit
from narrowpass_int4.plan import Job
from narrowpass_int4.storage.packing import FloatPacker

if TYPE_CHECKING:
    from narrowpass import Backend

Array = np.ndarray[Any, Any]


class Observation:
    """Runs a model up to each group of its weights, with those before it as they were quantized.

    Args:
        model: not changed; its nodes stay in their order while this is in use.
        samples: feeds for the model.
        backend: what runs it.
        compared: whether the float model runs, too, beside the narrow one.
        whole: see `Hessian`.
    """

    def __init__(
        self, model: ir.Model, samples: Samples, backend: Backend, *, compared: bool, whole: bool
    ) -> None:
        self._whole = whole
        memory = memory_limit() // (2 if compared else 1)
        self._narrow = Segments(model, samples, backend, memory)
        self._wide = Segments(model, samples, backend, memory) if compared else None
        self._places = {node: place for place, node in enumerate(model.graph)}
        self._quantized: dict[str, ir.TensorProtocol] = {}
        self._last: dict[str, int] = {}
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for segments in (self._narrow, self._wide):
            if segments is not None:
                self._opened.enter_context(segments)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Delete the values between layers, and the quantized weights."""
        self._quantized.clear()
        self._opened.close()

    def replace(self, job: Job, quantized: FloatPacker) -> None:
        """Let nodes that run from now on read a float32 weight as it is after quantization."""
        name = job.weight.name
        if name and job.tensor.dtype == ir.DataType.FLOAT:
            self._quantized[name] = quantized.tensor(job.dims, name)
            self._last[name] = last_place(self._places, job)

    def hessian(self, group: Group) -> Hessian | None:
        """Run the model up to a group; return what its weights are multiplied with.

        Args:
            group: of weights that are multiplied with the same value.

        Returns:
            None where they are quantized without data, or samples have no columns.

        Raises:
            DataError: a sample does not fit the model, or an activation is infinite or NaN.
            BackendError: the model cannot be run on the samples.
            PassError: values between layers cannot be written.
        """
        value = group.value
        if value is None or value.name is None:
            return None
        matrix = group.matrix
        found = Hessian(
            matrix.inner, value.name, compared=self._wide is not None, whole=self._whole
        )
        rights: Iterator[Array] = iter(())
        if self._wide is not None:
            self._wide.advance(group.place, {}, [], lambda name, array, where: None)
            rights = self._wide.held(value.name)

        def see(name: str, array: Array, where: str) -> None:
            columns = None if self._wide is None else columns_of(matrix, next(rights))
            found.add(columns_of(matrix, array), where, columns)

        self._narrow.advance(group.place, self._quantized, [value.name], see)
        for name in [name for name, last in self._last.items() if last < group.place]:
            self._quantized.pop(name, None)
        return found if found.count else None
