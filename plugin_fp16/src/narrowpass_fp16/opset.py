"""Newer versions of ONNX's operator set, where the narrow type asks for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass import Color, Decision
from narrowpass.errors import PassError, UpgradeError
from narrowpass_fp16.schemas import first_version, is_float, slots
from narrowpass_ir.inference import inferred
from narrowpass_ir.subgraphs import Opsets, model_nodes
from narrowpass_ir.upgrading import upgrade

if TYPE_CHECKING:
    from narrowpass import Context


FIRST = {ir.DataType.FLOAT16: 6, ir.DataType.BFLOAT16: 13}
"""The operator sets from which Cast has a type."""

_NEWEST = 23
"""The newest operator set that a model gets: runtimes have all of it."""


def with_cast(model: ir.Model, dtype: ir.DataType, ctx: Context) -> ir.Model:
    """Return a model of an operator set that has Cast to a type: the same one where it has.

    Args:
        model: not changed.
        dtype: the narrow type.
        ctx: receives the report of the upgrade.

    Raises:
        PassError: it cannot be upgraded.
    """
    least, before = FIRST[dtype], model.opset_imports.get("", 1)
    if before >= least:
        return model
    name = dtype.name.lower()
    try:
        upgraded, changed = upgrade(model.clone(), least)
    except UpgradeError as error:
        raise PassError(
            f"Cast knows {name} from operator set {least} on; the model has {before}: {error}"
        ) from error
    _report_upgrade(ctx, changed, before, least, f"Cast to {name} came with operator set {least}")
    return upgraded


def with_more(
    model: ir.Model,
    dtype: ir.DataType,
    color: Callable[[ir.Node], Color | None],
    ctx: Context,
    gains: Callable[[ir.Model, ir.Model], bool],
) -> ir.Model:
    """Return a model of an operator set in which more operators have bfloat16.

    Args:
        model: not changed.
        dtype: the narrow type; nothing is done for float16, which all operators had early.
        color: what the classifiers say of a node.
        ctx: receives the report of the upgrade, or why there is none.
        gains: returns whether the second model, written with the newer set, becomes narrower.

    Returns:
        Another model, or the same one where it gains nothing, or cannot be upgraded.
    """
    before = model.opset_imports.get("", 1)
    if dtype != ir.DataType.BFLOAT16 or before >= _NEWEST:
        return model
    with inferred(model):
        least = max((_wanted(model, dtype, color)), default=0)
    if least <= before:
        return model
    try:
        upgraded, changed = upgrade(model.clone(), least)
    except UpgradeError as error:
        ctx.observer.log.warning(
            "fp16: operators that have bfloat16 from %d on stay wide: %s", least, error
        )
        return model
    if upgraded is model or not gains(model, upgraded):
        return model
    _report_upgrade(
        ctx, changed, before, least, f"its operators have bfloat16 from operator set {least} on"
    )
    return upgraded


def _wanted(
    model: ir.Model, dtype: ir.DataType, color: Callable[[ir.Node], Color | None]
) -> list[int]:
    """Return the operator sets from which nodes have a type that they lack now."""
    opsets, found = Opsets(model), []
    for node in model_nodes(model):
        version = opsets.version(node)
        first = first_version(node, dtype)
        if node.domain or not version < first <= _NEWEST:
            continue
        floats = [slot for slot in slots(node, version, dtype) or () if is_float(slot.value)]
        lacking = floats and not any(slot.parameter for slot in floats)
        if lacking and color(node) is not Color.RED:
            found.append(first)
    return found


def _report_upgrade(ctx: Context, changed: list[ir.Node], before: int, to: int, why: str) -> None:
    ctx.observer.log.info("fp16: operator set %d becomes %d", before, to)
    ctx.counters["upgraded-to"] = to
    reason = f"{why}; the model had {before}"
    ctx.decisions.extend(
        Decision(node.name or "", node.op_type, "upgraded", "rule", reason) for node in changed
    )
