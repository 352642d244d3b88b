"""The classifier ``sized``: green is only what saves more than its casts may cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass import Color, OpClassifier, OpDtypes
from narrowpass_fp16.coloring.classifier import DefaultClassifier

if TYPE_CHECKING:
    from narrowpass.framework.classify import Target


class SizedClassifier(OpClassifier):
    """As ``default``, but a green node follows its neighbours where lowering it does not pay.

    It pays where the constants that the node reads have as many elements as the values that may
    have to be cast around it, so that the file shrinks by more bytes than a run converts; or where
    the target says that it gains time.

    Args:
        target: what the model is built for; None for no gain that is known.
        dtype: the narrow type.
    """

    name: ClassVar[str] = "sized"

    def __init__(self, target: Target | None = None, dtype: str = "float16") -> None:
        self._target, self._dtype = target, dtype
        self._default = DefaultClassifier()

    def for_target(self, target: Target | None, dtype: str) -> OpClassifier:
        """Return a classifier that asks `target`."""
        return SizedClassifier(target, dtype)

    def color(self, node: ir.Node) -> Color | None:
        """Return the colour of ``default``, gray instead of green where it does not pay."""
        color = self._default.color(node)
        if color is not Color.GREEN or self._pays(node):
            return color
        return Color.GRAY

    def dtypes(self, node: ir.Node) -> OpDtypes | None:
        """Return the types of ``default``."""
        return self._default.dtypes(node)

    def reason(self, node: ir.Node) -> str:
        """Return why a node is red or gray."""
        reason = self._default.reason(node)
        if not reason and self._default.color(node) is Color.GREEN and not self._pays(node):
            return "lowering it saves less than its casts may cost"
        return reason

    def _pays(self, node: ir.Node) -> bool:
        stored = sum(_elements(value) for value in node.inputs if _is_constant(value))
        moved = sum(_elements(value) for value in node.inputs if not _is_constant(value))
        moved += sum(map(_elements, node.outputs))
        if stored >= max(1, moved):
            return True
        if self._target is None:
            return False
        return self._target.gain(node, OpDtypes("float32", self._dtype)) > 0


def _is_constant(value: ir.Value | None) -> bool:
    return value is not None and value.const_value is not None


def _elements(value: ir.Value | None) -> int:
    """Return how many elements a value has; dimensions that are not known count as 1."""
    if value is None or value.shape is None:
        return 0
    return math.prod(dim for dim in value.shape if isinstance(dim, int))
