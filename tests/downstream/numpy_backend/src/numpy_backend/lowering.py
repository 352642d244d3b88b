"""Which operations the kernels take, and the steps that they become."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass_planning.graph import Facts, Op
from narrowpass_planning.plan import Partition, PythonExecutor, ShapeNode, Step
from narrowpass_planning.program import Lowering, NativeClassifier, SlotBuilder, Source
from numpy_backend import steps
from numpy_backend.packed import pack
from numpy_backend.steps import POINTWISE

OTHERS = {"Conv", "GlobalAveragePool", "MatMul", "Reshape", "Softmax", "Transpose"}
FLOAT = ir.DataType.FLOAT


class NumpyLowering(Lowering[Op]):
    """Lowers ten operators on float32."""

    executor = PythonExecutor()

    def operation(self, node: ir.Node, version: int) -> Op:
        """Return the operation of one node."""
        return Op.of(node, version)

    def reason(self, op: Op, facts: Facts) -> str | None:
        """Return why there is no kernel for an operation; None where there is."""
        if op.nodes[0].domain or op.kind not in OTHERS | POINTWISE.keys():
            return f"no kernel for {op.kind}"
        operands = op.inputs if op.kind in POINTWISE else op.inputs[:1]
        for value in (*operands, op.output):
            dtype = facts.dtype(value)
            if value is None or dtype != FLOAT:
                return f"the kernel is for float32, not {dtype.name if dtype else 'unknown types'}"
            if facts.rank(value) is None:
                return f"the rank of {value.name!r} is not known"
        if op.version < 13 and op.kind in ("Add", "Mul", "Softmax"):
            return f"{op.kind} of operator set {op.version} is not that of 13"
        if op.kind == "Reshape" and (op.get("allowzero", 0) or not facts.is_fixed(op.input(1))):
            return "the new shape does not follow from shapes"
        if op.kind == "MatMul" and not _is_weight(op.input(1), 2, facts):
            return "the second operand is not a constant matrix"
        return _reason_of_convolution(op, facts) if op.kind == "Conv" else None

    def lower(self, source: Source[Op]) -> Partition:
        """Return the partition: a step for each operation."""
        builder = SlotBuilder(source)
        for item in source.items:
            if isinstance(item, ShapeNode):
                builder.add_shape_node(item)
            else:
                builder.emit(_step(item, builder, source), item)
        return builder.finish(self.executor)


class NumpyClassifier(NativeClassifier):
    """Keeps wide what has no kernel."""

    name = "numpy"

    def lowering(self) -> NumpyLowering:
        """Return the lowering whose reasons count."""
        return NumpyLowering()


def _is_weight(value: ir.Value | None, rank: int, facts: Facts) -> bool:
    return facts.is_constant(value) and facts.rank(value) == rank and facts.is_float(value)


def _reason_of_convolution(op: Op, facts: Facts) -> str | None:
    if not _is_weight(op.input(1), 4, facts):
        return "the kernel's weight is not a constant of 4 dimensions"
    if op.input(2) is not None and not _is_weight(op.input(2), 1, facts):
        return "the bias is not a constant"
    if op.get("group", 1) != 1 or op.get("auto_pad", "NOTSET") != "NOTSET":
        return "groups, or padding that follows from sizes"
    return None if set(op.get("dilations", [1])) == {1} else "dilations"


def _step(op: Op, builder: SlotBuilder, source: Source[Op]) -> Step:
    """Return the step of an operation that `reason` has nothing against."""
    facts, session = source.facts, source.session
    if op.kind in POINTWISE:
        slots = [builder.slot(value) for value in op.inputs if value is not None]
        return steps.Pointwise(op.kind, POINTWISE[op.kind], slots, builder.output(op))
    given, rank = builder.slot(op.required(0)), facts.rank(op.required(0)) or 0
    output = builder.output(op)
    if op.kind == "Softmax":
        return steps.Rows("softmax", (op.get("axis", -1) % rank,), given, output)
    if op.kind == "GlobalAveragePool":
        return steps.Rows("mean", tuple(range(2, rank)), given, output)
    if op.kind == "Transpose":
        return steps.Transposed(op.get("perm", range(rank)[::-1]), given, output)
    if op.kind == "Reshape":
        return steps.Reshaped(op.required(1).name or "", given, output)
    weight = facts.weight(op.required(1))
    if op.kind == "MatMul":
        return steps.FullyConnected(pack(session, weight.transpose(1, 0), None), given, output)
    channels, inputs, *kernel_shape = weight.shape
    bias = op.input(2)
    matrix = pack(
        session,
        weight.reshape(channels, inputs * kernel_shape[0] * kernel_shape[1]),
        None if bias is None else facts.weight(bias),
    )
    strides, pads = op.get("strides", [1, 1]), op.get("pads", [0] * 4)
    return steps.Convolution(matrix, kernel_shape, strides, pads, given, output)
