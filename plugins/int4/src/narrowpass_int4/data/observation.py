"""What weights are multiplied with on data, group by group, as the narrow layers compute it.

A group are the weights that are multiplied with the same value; a model reads groups in an order.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx_ir as ir

from narrowpass import Samples
from narrowpass_int4.data.hessian import Hessian, columns_of
from narrowpass_int4.data.segments import Segments
from narrowpass_int4.data.states import memory_limit
from narrowpass_int4.matrices import Matrix
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


@dataclass(frozen=True)
class Group:
    """Weights that are multiplied with the same value.

    Attributes:
        value: the value; None for weights without data, each alone.
        jobs: the weights.
        place: the number of the first node of the graph that reads one.
    """

    value: ir.Value | None
    jobs: tuple[Job, ...]
    place: int

    @property
    def matrix(self) -> Matrix:
        """The first matrix."""
        return self.jobs[0].matrices[0]

    @property
    def inner(self) -> int:
        """How many elements each output of its weights adds up: K."""
        job = self.jobs[0]
        return job.dims[job.axis]


def groups(graph: ir.Graph, jobs: Sequence[Job]) -> list[Group]:
    """Return all weights in groups, in the order of the nodes that read them.

    Data is for weights of MatMul, Gemm and Conv of the graph itself. An embedding is quantized
    before anything is computed; experts, and what is within bodies, see data that others do not.
    """
    places = {node: place for place, node in enumerate(graph)}
    of_value: dict[ir.Value, list[Job]] = {}
    alone: list[Job] = []
    for job in jobs:
        value = job.matrices[0].node.inputs[0] if job.matrices else None
        observed = (
            value is not None
            and not job.gathers
            and job.matrices[0].node in places
            and (job.matrices[0].is_matmul or job.matrices[0].node.op_type == "Conv")
        )
        if observed and value is not None:
            of_value.setdefault(value, []).append(job)
        else:
            alone.append(job)
    found = [Group(None, (job,), _first(job, places)) for job in alone]
    for value, members in of_value.items():
        found.append(Group(value, tuple(members), min(_first(job, places) for job in members)))
    return sorted(found, key=lambda group: group.place)


def _first(job: Job, places: dict[ir.Node, int]) -> int:
    """Return the first node of the graph that reads a weight; 0 where that is within a body."""
    return min((places[node] for node in job.nodes if node in places), default=0)


def last_place(places: dict[ir.Node, int], job: Job) -> int:
    """Return the last node of the graph that reads a weight, through a Transpose or not."""
    nodes = [node for node in job.nodes if node in places]
    return max((places[node] for node in nodes), default=len(places))
