"""Constant operands of Reshape that stand for shapes which are known only partly."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass_constant_folding.shapes.sizes import Element

Items = Sequence[Element]


def constant_target(source: Items | None, result: Items, *, may_infer: bool) -> list[int] | None:
    """Return a constant target with which Reshape always maps `source` to `result`.

    A dimension that is the source's at the same place is written as 0, and one other as -1.

    Args:
        source: the shape of what is reshaped; None where unknown.
        result: the shape wanted; no element may stand for -1 or for a copied dimension.
        may_infer: whether -1 may stand beside dimensions that might be 0. If one of these is 0,
            the Reshape fails, where it might have worked with numbers.

    Returns:
        The operand for ``allowzero=0``, or None where there is none.
    """
    target: list[int] = []
    for axis, item in enumerate(result):
        copied = source[axis] if source is not None and axis < len(source) else None
        if isinstance(item, int) and item > 0:
            target.append(item)
        elif item is not None and item == copied:
            target.append(0)
        else:
            target.append(-1)
    if target.count(-1) > 1:
        return None
    if -1 in target and 0 in target and not may_infer:
        return None
    if -1 in target and result[target.index(-1)] == 0:
        return None
    return target
