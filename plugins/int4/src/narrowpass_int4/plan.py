"""Which weights of a model are stored in how many bits, and which stay as they are, with why."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.framework.classify import matching_nodes
from narrowpass_int4.matrices import (
    Matrix,
    are_factors,
    last_matmuls,
    matrices_of,
    other_readers,
    table_of,
)
from narrowpass_ir.constants import constant_tensor

if TYPE_CHECKING:
    from narrowpass import Context

Array = np.ndarray[Any, Any]

LEAST_ELEMENTS = 1024
"""A weight with fewer elements saves less than what its scales and nodes cost."""

_BITS = {"int4": 4, "int8": 8}


@dataclass(frozen=True)
class Rules:
    """What the options of the pass say of which weights are narrow.

    Attributes:
        head: ``int4``, ``int8`` or ``keep``, of the matmuls that no other follows.
        embeddings: the same of constants that a Gather looks up rows of.
        red: items that select nodes which stay wide.
        green: items that select nodes which are narrow also where a rule would leave them.
    """

    head: str
    embeddings: str
    red: tuple[str, ...]
    green: tuple[str, ...]


@dataclass
class Job:
    """A constant that is to be quantized.

    Attributes:
        weight: the constant.
        matrices: the nodes that multiply with it.
        gathers: the nodes that look up its rows.
        bits: of its integers.
        by: what decided that.
        axis: of the constant, along which blocks lie.
        place: of the first node that reads it, among all.
        green: whether it is narrow whatever it loses.
    """

    weight: ir.Value
    matrices: list[Matrix] = field(default_factory=list)
    gathers: list[ir.Node] = field(default_factory=list)
    bits: int = 4
    by: str = "rule"
    axis: int = 0
    place: int = 0
    green: bool = False

    @property
    def tensor(self) -> ir.TensorProtocol:
        """The constant's tensor."""
        tensor = constant_tensor(self.weight)
        if tensor is None:
            raise ValueError(f"{self.weight.name!r} is no constant")
        return tensor

    @property
    def dims(self) -> tuple[int, ...]:
        """The constant's shape."""
        return tuple(int(size) for size in self.tensor.shape.numpy())

    def rows(self) -> Array:
        """Return the weight as float32 [N, K]."""
        array = self.tensor.numpy().astype(np.float32)
        return array if self.axis == 1 else np.ascontiguousarray(array.T)

    @property
    def nodes(self) -> list[ir.Node]:
        """The nodes that read the weight."""
        return [*(each.node for each in self.matrices), *self.gathers]


@dataclass(frozen=True)
class Left:
    """A node whose weight stays as it is.

    Attributes:
        node: the node.
        by: what decided that.
        reason: why, as a sentence.
    """

    node: ir.Node
    by: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """What becomes of the weights of a model.

    Attributes:
        jobs: those that are quantized, in the order of the nodes that read them.
        left: nodes whose weights stay, in order.
    """

    jobs: list[Job]
    left: list[Left]


def plan(model: ir.Model, rules: Rules, ctx: Context) -> Plan:
    """Decide about each node with a constant matrix.

    Args:
        model: not changed.
        rules: see `Rules`.
        ctx: its log warns of items that select no node.
    """
    nodes = list(model.graph.all_nodes())
    red = _selected(rules.red, nodes, "red", ctx)
    green = _selected(rules.green, nodes, "green", ctx)
    heads = last_matmuls(model.graph)
    left: list[Left] = []
    found: dict[ir.Value, Job] = {}
    for place, node in enumerate(nodes):
        table = table_of(node)
        if table is not None:
            found.setdefault(table, Job(table, place=place)).gathers.append(node)
            continue
        matrices = matrices_of(node)
        if matrices is None:
            continue
        if isinstance(matrices, str):
            left.append(Left(node, "rule", matrices))
            continue
        for matrix in matrices:
            job = found.setdefault(matrix.weight, Job(matrix.weight, place=place))
            job.matrices.append(matrix)
    jobs = []
    for job in found.values():
        why = _settle(job, rules, heads, red, green)
        if why is None:
            jobs.append(job)
        else:
            left += [Left(node, *why) for node in dict.fromkeys(job.nodes)]
    order = {node: place for place, node in enumerate(nodes)}
    left.sort(key=lambda each: order[each.node])
    return Plan(sorted(jobs, key=lambda job: job.place), left)


def _settle(
    job: Job, rules: Rules, heads: set[ir.Node], red: dict[ir.Node, str], green: dict[ir.Node, str]
) -> tuple[str, str] | None:
    """Decide about a weight; return who leaves it and why, or None."""
    for node in job.nodes:
        if node in red:
            return f"option red={red[node]}", "it is to stay wide"
    job.green = any(node in green for node in job.nodes)
    weight = job.weight
    if job.gathers and not job.green and all(map(are_factors, job.gathers)):
        return "rule", f"rows of {weight.name!r} are factors of other values"
    kinds = []
    if job.gathers:
        kinds.append(("embeddings", rules.embeddings))
    if any(matrix.node in heads for matrix in job.matrices):
        kinds.append(("head", rules.head))
    for name, kind in kinds:
        if kind == "keep":
            return f"{name}=keep", "it is to stay wide"
    chosen = max(kinds, key=lambda pair: _BITS[pair[1]], default=None)
    if chosen is not None:
        job.bits, job.by = _BITS[chosen[1]], f"{chosen[0]}={chosen[1]}"
    axes = {matrix.axis for matrix in job.matrices} | ({1} if job.gathers else set())
    if len(axes) != 1:
        return "rule", f"nodes read {weight.name!r} along different axes"
    (job.axis,) = axes
    other = other_readers(weight, job.matrices, job.gathers)
    if other:
        return "rule", f"{other} reads {weight.name!r} too, and needs it as it is"
    size = math.prod(job.dims)
    if size < LEAST_ELEMENTS and not job.green:
        return "rule", f"its weight {weight.name!r} has only {size} elements"
    return None


def _selected(
    items: tuple[str, ...], nodes: Iterable[ir.Node], option: str, ctx: Context
) -> dict[ir.Node, str]:
    """Return the item that selects each node."""
    found: dict[ir.Node, str] = {}
    for item, chosen in matching_nodes(items, nodes).items():
        if not chosen:
            ctx.observer.log.warning("int4: %s item %r selects no node", option, item)
        for node in chosen:
            found.setdefault(node, item)
    return found
