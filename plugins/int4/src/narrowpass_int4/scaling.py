"""The factors of AWQ for a group of weights, and the constants that can divide by them.

Where a constant before the weights absorbs the factors, they cost no operator.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_int4.data.hessian import Hessian
from narrowpass_int4.data.observation import Group
from narrowpass_int4.matrices import drop_unread
from narrowpass_int4.methods.awq import search_factors
from narrowpass_int4.plan import Job
from narrowpass_int4.reporting import Done
from narrowpass_int4.settings import Options, Settings
from narrowpass_ir.constants import constant_tensor
from narrowpass_ir.subgraphs import reserve_name

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Scaling:
    """Factors for the channels of a value.

    Attributes:
        factors: float32 [K], that the weights of its readers are multiplied by.
        divisors: the constants that are divided by them in turn.
    """

    factors: Array
    divisors: tuple[Divisor, ...]


def find_scaling(
    group: Group,
    hessian: Hessian,
    settings: Settings,
    options: Options,
    jobs: Sequence[Job],
    every: Sequence[Done],
) -> Scaling | None:
    """Return the factors with which a group loses least; None without, or where none can divide.

    Args:
        group: of weights that are multiplied with the same value.
        hessian: of that value.
        settings: what each weight is quantized with.
        options: of the pass.
        jobs: all weights that are to be quantized.
        every: those that are quantized already.
    """
    value = group.value
    readers = {node for job in group.jobs for node in job.nodes}
    narrow = all(job.bits == 4 and job.matrices[0].is_matmul for job in group.jobs)
    if value is None or not narrow:
        return None
    channels = group.matrix.inner
    divisors = find_divisors(value, readers, channels)
    ready = all(_is_ready(each, jobs, every) for each in divisors)
    if not divisors or not ready:
        return None
    weights = [job.rows() for job in group.jobs]
    grid, block = settings.grid(group.jobs[0], nbits=False), options.block or channels
    magnitude = hessian.magnitude / hessian.count
    factors = search_factors(weights, hessian.matrix, magnitude, grid, block)
    if factors is None or not _can_divide(divisors, factors, every):
        return None
    return Scaling(factors, tuple(divisors))


def _can_divide(divisors: Sequence[Divisor], factors: Array, every: Sequence[Done]) -> bool:
    """Return whether the stored scales of the weights that are divided represent the result."""
    values = {divisor.value for divisor in divisors}
    packed = [done.packed for done in every if done.job.weight in values]
    return all(each.can_divide(float(factors.min()), float(factors.max())) for each in packed)


def _is_ready(divisor: Divisor, jobs: Sequence[Job], every: Sequence[Done]) -> bool:
    """Return whether a constant is no weight that is still to be quantized."""
    if not divisor.matrix:
        return True
    planned: set[ir.Value] = {job.weight for job in jobs}
    done = {each.job.weight for each in every}
    return divisor.value not in planned or divisor.value in done


_NORMS = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")


@dataclass(frozen=True)
class Divisor:
    """A constant that can be divided by a factor for each channel.

    Attributes:
        node: what reads it.
        index: of the constant among the node's inputs.
        axis: of the constant, along which channels lie.
        matrix: whether it is the weight of a matmul, whose outputs are divided.
    """

    node: ir.Node
    index: int
    axis: int
    matrix: bool = False

    @property
    def value(self) -> ir.Value:
        """The constant."""
        value = self.node.inputs[self.index]
        if value is None:
            raise ValueError(f"{self.node.name!r} has no input {self.index}")
        return value


def find_divisors(value: ir.Value, readers: Collection[ir.Node], channels: int) -> list[Divisor]:
    """Return constants which, divided by factors, divide the channels of a value; empty for none.

    Args:
        value: of any shape, channels last.
        readers: the nodes whose weights are multiplied by the factors.
        channels: how many there are.
    """
    if value.is_graph_output() or any(use.node not in readers for use in value.uses()):
        return []
    return _divisors(value, channels) or []


def _divisors(value: ir.Value, channels: int) -> list[Divisor] | None:
    node = value.producer()
    if node is None or value is not node.outputs[0]:
        return None
    if node.op_type in _NORMS and node.attributes.get_int("axis", -1) == -1:
        return _of_norm(node, channels)
    if node.domain:
        return None
    if node.op_type in ("MatMul", "Gemm"):
        return _of_matmul(node, channels)
    if node.op_type in ("Mul", "Add"):
        return _of_two(node, channels)
    return None


def _of_norm(node: ir.Node, channels: int) -> list[Divisor] | None:
    found = [_vector(node, index, channels) for index in range(1, len(node.inputs))]
    if not found or any(each is None for each in found):
        return None
    if any(output.uses() for output in node.outputs[1:]):
        return None
    return [each for each in found if each is not None]


def _of_matmul(node: ir.Node, channels: int) -> list[Divisor] | None:
    weight = constant_tensor(node.inputs[1])
    if weight is None or len(weight.shape) != 2:
        return None
    axis = 0 if node.attributes.get_int("transB", 0) == 1 else 1
    if weight.shape.numpy()[axis] != channels or _shared(node.inputs[1]):
        return None
    found = [Divisor(node, 1, axis, matrix=True)]
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = _vector(node, 2, channels)
        if bias is None:
            return None
        found.append(bias)
    return found


def _of_two(node: ir.Node, channels: int) -> list[Divisor] | None:
    constants = [index for index in (0, 1) if constant_tensor(node.inputs[index]) is not None]
    if node.op_type == "Add":
        if len(constants) != 1:
            return None
        bias, other = _vector(node, constants[0], channels), node.inputs[1 - constants[0]]
        rest = None if other is None or not _alone(other) else _divisors(other, channels)
        return None if bias is None or rest is None else [bias, *rest]
    if constants:
        row = _vector(node, constants[0], channels)
        return None if row is None or len(constants) != 1 else [row]
    for operand in (node.inputs[1], node.inputs[0]):
        found = None if operand is None or not _alone(operand) else _divisors(operand, channels)
        if found is not None:
            return found
    return None


def _alone(value: ir.Value) -> bool:
    return len(value.uses()) == 1 and not value.is_graph_output()


def _shared(value: ir.Value | None) -> bool:
    return value is None or len(value.uses()) != 1 or value.is_graph_input()


def _vector(node: ir.Node, index: int, channels: int) -> Divisor | None:
    value = node.inputs[index]
    tensor = constant_tensor(value)
    if value is None or tensor is None or value.is_graph_input():
        return None
    dims = tuple(tensor.shape.numpy())
    fits = dims and dims[-1] == channels == tensor.size
    return Divisor(node, index, len(dims) - 1) if fits else None


def divide(divisor: Divisor, factors: Array, taken: set[str | None]) -> None:
    """Put a constant that is divided by factors in the place of one; others keep the old one.

    Args:
        divisor: the constant.
        factors: float32 [channels].
        taken: names that others have; that of the new one is added.
    """
    before = divisor.value
    tensor, graph = constant_tensor(before), divisor.node.graph
    if tensor is None or not isinstance(graph, ir.Graph):
        raise ValueError(f"{before.name!r} is no constant of a graph")
    shape = [1] * len(tensor.shape)
    shape[divisor.axis] = -1
    array = tensor.numpy()
    divided = (array.astype(np.float32) / factors.reshape(shape)).astype(array.dtype)
    name = reserve_name(f"{before.name}.divided", taken)
    value = ir.Value(
        name=name,
        shape=ir.Shape(divided.shape),
        type=ir.TensorType(tensor.dtype),
        const_value=ir.Tensor(divided, dtype=tensor.dtype, name=name),
    )
    owner = before.graph if before.producer() is None else graph
    (owner if isinstance(owner, ir.Graph) else graph).initializers[name] = value
    divisor.node.replace_input_with(divisor.index, value)
    drop_unread(before)
