"""The table of all lowering rules, and its use."""

from __future__ import annotations

import onnx_ir as ir

from narrowpass.errors import AttributesError, BackendError, SchemaError
from narrowpass_expansion import expand
from narrowpass_ir.attributes import check_attributes
from narrowpass_planning.graph.facts import Facts
from narrowpass_planning.state.errors import AppendError
from narrowpass_planning.state.operators import APPEND_ROWS, DOMAIN
from narrowpass_xnn_cpu.lower.attention import appended, attention, kv_cache, rotary
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.conv import convolution, pooling, resize
from narrowpass_xnn_cpu.lower.elementwise import (
    arithmetic,
    gates,
    reduction,
    typed,
)
from narrowpass_xnn_cpu.lower.int8 import (
    conversion,
    int16,
    integers,
    per_channel,
    tables,
)
from narrowpass_xnn_cpu.lower.int8 import convolution as int8_convolution
from narrowpass_xnn_cpu.lower.int8 import elementwise as int8_elementwise
from narrowpass_xnn_cpu.lower.int8 import matmul as int8_matmul
from narrowpass_xnn_cpu.lower.matmul import constant, joined, recurrent
from narrowpass_xnn_cpu.lower.movement import axes, concat, indexing, padding, reshape, scattering
from narrowpass_xnn_cpu.lower.norm import batch_norm, group_norm, layer_norm, rows
from narrowpass_xnn_cpu.lower.op import Op
from narrowpass_xnn_cpu.lower.rule import Rule
from narrowpass_xnn_cpu.lower.trees import lowering

RULES: tuple[Rule, ...] = (
    *appended.RULES,
    *attention.RULES,
    *kv_cache.RULES,
    *per_channel.RULES,
    *conversion.RULES,
    *convolution.RULES,
    *arithmetic.RULES,
    *gates.RULES,
    *group_norm.RULES,
    *indexing.RULES,
    *int8_convolution.RULES,
    *int8_elementwise.RULES,
    *int8_matmul.RULES,
    *integers.RULES,
    *concat.RULES,
    *layer_norm.RULES,
    *constant.RULES,
    *joined.RULES,
    *batch_norm.RULES,
    *padding.RULES,
    *pooling.RULES,
    *recurrent.RULES,
    *reduction.RULES,
    *reshape.RULES,
    *resize.RULES,
    *rotary.RULES,
    *rows.RULES,
    *scattering.RULES,
    *axes.RULES,
    *int16.RULES,
    *tables.RULES,
    *typed.RULES,
    *lowering.RULES,
)
"""All rules, in one explicit table. An operation is lowered by the rule of its kind and domain."""

BY_KIND = {rule.kind: rule for rule in RULES}

NATIVE = frozenset({("", "TensorScatter"), (DOMAIN, APPEND_ROWS)})
"""Operators, by domain and type, that are lowered directly and not expanded before."""


MICROSOFT = "com.microsoft"
"""The domain of contrib operators, which the reference evaluator does not implement."""


def expand_checked(model: ir.Model) -> None:
    """Expand operators without a rule into operators with rules, and infer types.

    Raises:
        BackendError: a contrib operator with options that no expansion supports; the message names
            the node and the option.
    """
    for found in expand(model, keep=NATIVE, subgraphs=False):
        if found.reason and found.domain == MICROSOFT:
            raise BackendError(
                f"node {found.node!r} ({found.domain}.{found.op_type}) cannot be run: "
                f"{found.reason}"
            )


def reason(op: Op, facts: Facts) -> str | None:
    """Return why an operation has no native kernel; None if it can be lowered."""
    domain = op.nodes[0].domain
    rule = BY_KIND.get(op.kind)
    if domain and (rule is None or rule.domain != domain):
        return f"operators of domain {domain!r} have no native kernel"
    if rule is None or rule.domain != domain:
        return f"{op.kind} has no native kernel"
    try:
        for node in op.nodes:
            check_attributes(node, node.version or op.version)
        found = rule.check(op, facts)
    except (AttributesError, SchemaError) as error:
        return f"its attributes are not valid: {error}"
    if found is not None:
        return found
    for output in op.outputs:
        if not output.name:
            continue
        if output is not op.output and not output.uses() and output.name not in facts.needed:
            continue
        if output.dtype is None:
            return f"the element type of {output.name!r} is not known"
        rank = facts.rank(output)
        if rank is None:
            return f"the rank of {output.name!r} is not known"
        if rank > 6:
            return f"its output has {rank} dimensions; XNNPACK supports 6 at most"
    return None


def emit(op: Op, builder: Builder) -> None:
    """Emit an operation with the rule of its kind."""
    BY_KIND[op.kind].lower(op, builder)


def lower(op: Op, builder: Builder) -> None:
    """Lower an operation for which `reason` is None.

    Raises:
        BackendError: it cannot be lowered; the message names the node.
    """
    try:
        builder.lower(op)
    except BackendError as error:
        name = op.nodes[-1].name or op.output.name
        kind = AppendError if isinstance(error, AppendError) else BackendError
        raise kind(f"node {name!r} ({op.kind}) cannot be lowered: {error}") from error
