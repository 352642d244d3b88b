"""The rules, by operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import onnx_ir as ir

from narrowpass_constant_folding.graphs.constants import small_array
from narrowpass_constant_folding.graphs.matching import (
    attribute,
    input_of,
    is_op,
    only_first_output_used,
)
from narrowpass_constant_folding.graphs.scope import Scope
from narrowpass_constant_folding.identities import arithmetic, layout

_FIRST_DROPOUT_WITH_TRAINING_INPUT = 12
_FIRST_DROPOUT_WITHOUT_TEST_MODE = 7

Keeps = Callable[[Scope, ir.Node], bool]
Source = Callable[[Scope, ir.Node], ir.Value | None]


def identity_source(scope: Scope, node: ir.Node) -> ir.Value | None:
    """Return the value that the first output of `node` always equals, bit for bit; None for none.

    Where other outputs are read, there is none.
    """
    if node.op_type not in _RULES or not is_op(node, node.op_type) or not node.inputs:
        return None
    if not only_first_output_used(node):
        return None
    return _RULES[node.op_type](scope, node)


def _first_if(keeps: Keeps) -> Source:
    return lambda scope, node: node.inputs[0] if keeps(scope, node) else None


def _single(scope: Scope, node: ir.Node) -> bool:
    """Whether it puts together, or takes apart, a single thing."""
    return len(node.inputs) == 1 if node.op_type != "Split" else len(node.outputs) == 1


def _always(scope: Scope, node: ir.Node) -> bool:
    return True


def _not_training(scope: Scope, node: ir.Node) -> bool:
    if scope.opset < _FIRST_DROPOUT_WITHOUT_TEST_MODE:
        return bool(attribute(node, "is_test", 0))
    if scope.opset < _FIRST_DROPOUT_WITH_TRAINING_INPUT or input_of(node, 2) is None:
        return True
    mode = small_array(scope.constant(input_of(node, 2)))
    return mode is not None and not mode.any()


_RULES: Mapping[str, Source] = MappingProxyType(
    {
        "Identity": _first_if(_always),
        "Dropout": _first_if(_not_training),
        "Transpose": _first_if(layout.is_identity_transpose),
        "Reshape": _first_if(layout.is_identity_reshape),
        "Expand": _first_if(layout.is_identity_expand),
        "Slice": _first_if(layout.is_identity_slice),
        "Pad": _first_if(layout.is_identity_pad),
        "Tile": _first_if(layout.is_identity_tile),
        "Where": arithmetic.where_source,
        **dict.fromkeys(("Squeeze", "Unsqueeze", "Flatten"), _first_if(layout.keeps_rank)),
        **dict.fromkeys(("Resize", "Upsample"), _first_if(layout.is_identity_resize)),
        **dict.fromkeys(("Concat", "Split", "Sum", "Max", "Min", "Mean"), _first_if(_single)),
        **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow"), arithmetic.neutral_source),
        **dict.fromkeys(("And", "Or", "Xor", "BitwiseOr", "BitwiseXor"), arithmetic.neutral_source),
        **dict.fromkeys(("Neg", "Not"), arithmetic.involution_source),
        **dict.fromkeys(("Relu", "Abs", "Ceil", "Floor", "Round", "Sign"), arithmetic.idempotent),
    }
)
