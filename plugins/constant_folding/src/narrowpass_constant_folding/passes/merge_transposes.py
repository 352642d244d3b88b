"""The pass ``merge-transposes``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass_constant_folding.graphs.matching import attribute, dims_of, is_op
from narrowpass_constant_folding.graphs.scope import clone_as
from narrowpass_constant_folding.rewrite import Rewrite

if TYPE_CHECKING:
    from narrowpass_constant_folding.graphs.scope import Scope
    from narrowpass_constant_folding.rewrite import Work


@dataclass(frozen=True)
class MergeTransposes(Rewrite):
    """Merge or cancel consecutive transposes, and fuse transposes into Gemm."""

    name: ClassVar[str] = "merge-transposes"

    def apply(self, work: Work) -> None:
        """Merge Transpose with Transpose, and with Gemm.

        Counters: ``merged``.
        """
        for scope in work.scopes():
            for node in scope.graph:
                if not is_op(node, "Transpose", "Gemm") or not scope.can_edit(node):
                    continue
                done = _merge(scope, node) if node.op_type == "Transpose" else _absorb(scope, node)
                if done:
                    work.report.record(node, "merged", "merge-transposes")


def _merge(scope: Scope, node: ir.Node) -> bool:
    before = scope.producer(node.inputs[0])
    if before is None or not is_op(before, "Transpose") or not scope.can_edit(before):
        return False
    source = before.inputs[0]
    first, second = _perm(before), _perm(node)
    if source is None or first is None or second is None or len(first) != len(second):
        return False
    if scope.names.is_shadowed(source.name):
        return False
    perm = [first[axis] for axis in second]
    if perm == sorted(perm) and scope.bypass(node, source):
        return True
    output = scope.successor(node.outputs[0])
    merged = clone_as(node, "Transpose", [source], [ir.AttrInt64s("perm", perm)], [output])
    scope.replace(node, merged, {node.outputs[0]: output})
    return True


def _perm(node: ir.Node) -> tuple[int, ...] | None:
    perm: tuple[int, ...] | None = attribute(node, "perm", None)
    if perm is not None:
        return perm
    dims = None if node.inputs[0] is None else dims_of(node.inputs[0])
    return None if dims is None else tuple(range(len(dims)))[::-1]


def _absorb(scope: Scope, gemm: ir.Node) -> bool:
    """Turn a transposed operand of a Gemm into its attribute transA or transB."""
    inputs = list(gemm.inputs)
    flips: dict[str, int] = {}
    for index, name in ((0, "transA"), (1, "transB")):
        transpose = scope.producer(inputs[index])
        if transpose is None or not is_op(transpose, "Transpose") or not scope.can_edit(transpose):
            continue
        source = transpose.inputs[0]
        if source is None or _perm(transpose) != (1, 0) or scope.names.is_shadowed(source.name):
            continue
        inputs[index] = source
        flips[name] = 1 - attribute(gemm, name, 0)
    if not flips:
        return False
    kept = [attr for name, attr in gemm.attributes.items() if name not in flips]
    output = scope.successor(gemm.outputs[0])
    merged = clone_as(
        gemm,
        "Gemm",
        inputs,
        [*kept, *(ir.AttrInt64(name, flip) for name, flip in flips.items() if flip)],
        [output],
    )
    scope.replace(gemm, merged, {gemm.outputs[0]: output})
    return True
