"""The pass ``fuse-bias``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass_constant_folding.fusion import absorb
from narrowpass_constant_folding.graphs.matching import dims_of, dtype_of, is_op
from narrowpass_constant_folding.graphs.scope import clone_as
from narrowpass_constant_folding.rewrite import Rewrite

if TYPE_CHECKING:
    from narrowpass_constant_folding.graphs.scope import Scope
    from narrowpass_constant_folding.rewrite import Work

_GEMM_DTYPES = frozenset(
    {ir.DataType.FLOAT, ir.DataType.FLOAT16, ir.DataType.DOUBLE, ir.DataType.BFLOAT16}
)
_FIRST_GEMM_THAT_BROADCASTS = 7
_FIRST_GEMM_WITH_BFLOAT16 = 13


@dataclass(frozen=True)
class FuseBias(Rewrite):
    """Fold the addition of a constant for each channel into the operator before it.

    A Conv, ConvTranspose, Gemm or BatchNormalization gets it as its bias. A MatMul of two
    matrices (a MatMul of rank 2) and the addition become a Gemm. Results change by rounding,
    since the order of the additions may be another.
    """

    name: ClassVar[str] = "fuse-bias"

    def apply(self, work: Work) -> None:
        """Fuse Add and Sub.

        Counters: ``fused``.
        """
        absorb(work, "Add", "Sub")
        for scope in work.scopes():
            if scope.opset < _FIRST_GEMM_THAT_BROADCASTS:
                continue
            for node in scope.graph:
                if is_op(node, "Add") and scope.can_edit(node) and _fuse_to_gemm(scope, node):
                    work.report.record(node, "fused", "MatMul")


def _fuse_to_gemm(scope: Scope, add: ir.Node) -> bool:
    for index in (0, 1):
        output, bias = add.inputs[index], add.inputs[1 - index]
        matmul = scope.producer(output)
        if output is None or bias is None or matmul is None:
            continue
        if not is_op(matmul, "MatMul") or not scope.can_edit(matmul):
            continue
        if scope.only_reader(output) is add and _is_gemm(scope, matmul, bias):
            output = scope.successor(add.outputs[0])
            gemm = clone_as(matmul, "Gemm", [*matmul.inputs, bias], [], [output])
            scope.replace(add, gemm, {add.outputs[0]: output})
            scope.remove(matmul)
            return True
    return False


def _is_gemm(scope: Scope, matmul: ir.Node, bias: ir.Value) -> bool:
    """Whether the operands are matrices, and the bias has a value for each column, or one."""
    left, right = matmul.inputs
    if left is None or right is None:
        return False
    shapes = [dims_of(left), dims_of(right)]
    if any(dims is None or len(dims) != 2 for dims in shapes):
        return False
    columns = (shapes[1] or ())[1]
    if columns is None:
        return False
    if dims_of(bias) not in ((), (1,), (1, 1), (columns,), (1, columns)):
        return False
    dtypes = {dtype_of(left), dtype_of(right), dtype_of(bias)}
    if len(dtypes) != 1 or not dtypes <= _GEMM_DTYPES:
        return False
    return dtypes != {ir.DataType.BFLOAT16} or scope.opset >= _FIRST_GEMM_WITH_BFLOAT16
