"""Weights that are multiplied with the same value, in the order in which a model reads it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import onnx_ir as ir

from narrowpass_int4.matrices import Matrix
from narrowpass_int4.plan import Job


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
