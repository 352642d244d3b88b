"""Operators with bodies: branches, loops, scans, maps of sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper

from narrowpass_testing.random_models._builder import Draft, Recipes, UnfitError
from narrowpass_testing.random_models._elements import Array

if TYPE_CHECKING:
    from narrowpass_testing.random_models._builder import Builder

TABLE = Recipes()

SAME_SHAPE = ("Abs", "Neg", "Sigmoid", "Tanh", "Relu", "Softmax", "Identity", "Sin", "Mul", "Add")
"""Operators of bodies that keep shapes and types."""

FREE = (
    *("Add", "Mul", "Sub", "Transpose", "Reshape", "Concat", "Slice", "Gather", "ReduceMean"),
    *("ReduceSum", "MatMul", "Unsqueeze", "Clip", "Expand", "Split", "Exp", "Pad"),
)
"""Further operators of bodies; what they compute may be a scan output."""


def _grown(d: Draft, name: str, array: Array, steps: int) -> tuple[Builder, str]:
    """Return a body that computes, from a value that it reads, another of its type and shape."""
    body = d.builder.inner()
    body.values[name] = array
    last = name
    for _ in range(steps):
        kind = d.pick(*SAME_SHAPE)
        operands = [last]
        if kind in ("Mul", "Add"):
            same = [n for n, v in body.values.items() if _alike(v, array)]
            operands.append(d.pick(*same))
        result = body.name("v")
        attributes: dict[str, Any] = {"axis": -1} if kind == "Softmax" and array.ndim else {}
        body.nodes.append(helper.make_node(kind, operands, [result], **attributes))
        body.values[result] = array
        last = result
    return body, last


def _free(d: Draft, body: Builder) -> str | None:
    """Add nodes of any shape to a body; return the last result."""
    found = None
    for _ in range(d.pick(0, 0, 1, 2)):
        before = len(body.nodes)
        if body.step(("", d.pick(*FREE))) and len(body.nodes) > before:
            found = body.nodes[-1].output[0]
    return found


def _alike(value: object, array: Array) -> bool:
    return (
        isinstance(value, np.ndarray) and value.dtype == array.dtype and value.shape == array.shape
    )


@TABLE.operators("If")
def _branch(d: Draft) -> None:
    d.operand(np.asarray(d.chance(0.5)), constant=0.4)
    floats = [
        n
        for n, v in d.builder.values.items()
        if isinstance(v, np.ndarray) and v.dtype == np.float32 and v.ndim
    ]
    if not floats:
        name = d.builder.store(d.numbers.standard_normal((2, 3)).astype(np.float32), 0.2)
        floats = [name]
    chosen = d.pick(*floats)
    for key in ("then_branch", "else_branch"):
        body, last = _grown(d, chosen, d.builder.values[chosen], d.pick(1, 2, 3))
        other = _free(d, body)
        if other is not None and _alike(body.values[other], d.builder.values[chosen]):
            last = other
        d.set(key, body.body([], [last]))


@TABLE.operators("Loop")
def _loop(d: Draft) -> None:
    trips = d.pick(0, 1, 2, 3)
    if d.chance(0.85):
        d.operand(np.asarray(trips), constant=0.5)
    else:
        d.none()
    if d.chance(0.6) or not d.inputs[0]:
        if not d.inputs[0]:
            raise UnfitError  # it would never end
        d.operand(np.asarray(d.chance(0.85)), constant=0.5)
    else:
        d.none()
    carried = d.draw((2, 3), constant=0.2).astype(np.float32)
    if d.arrays[-1] is None or d.arrays[-1].dtype != np.float32:
        raise UnfitError
    name = d.builder.name("c")
    body, last = _grown(d, name, carried, d.pick(1, 2))
    kept = _free(d, body) or last
    turn, going, still = (body.name(p) for p in ("i", "q", "q"))
    body.values[turn], body.values[going] = np.asarray(0), np.asarray(True)
    body.values[still] = np.asarray(True)
    body.nodes.append(helper.make_node("Identity", [going], [still]))
    outputs = [still, last]
    d.outputs = 1
    if d.chance(0.5):
        extra = body.name("v")
        body.nodes.append(helper.make_node("Identity", [kept], [extra]))
        body.values[extra] = body.values[kept]
        outputs.append(extra)
        d.outputs = 2
    d.set("body", body.body([turn, going, name], outputs))


@TABLE.operators("Scan")
def _scan(d: Draft) -> None:
    if d.schema.since_version < 9:
        raise UnfitError
    length, width = d.pick(1, 2, 5), d.pick(1, 3)
    state = d.numbers.standard_normal(width).astype(np.float32)
    row = d.numbers.standard_normal(width).astype(np.float32)
    d.operand(state, constant=0.3)
    d.operand(d.numbers.standard_normal((length, width)).astype(np.float32), constant=0.2)
    name, other = d.builder.name("c"), d.builder.name("r")
    body, last = _grown(d, name, state, d.pick(1, 2))
    body.values[other] = row
    mixed, kept = body.name("v"), body.name("v")
    body.nodes.append(helper.make_node(d.pick("Add", "Mul", "Sub"), [last, other], [mixed]))
    body.nodes.append(helper.make_node("Identity", [mixed], [kept]))
    body.values[mixed] = body.values[kept] = state
    d.set("num_scan_inputs", 1)
    d.maybe("scan_input_directions", [0], [1])
    d.maybe("scan_output_directions", [0], [1])
    d.set("body", body.body([name, other], [mixed, kept]))
    d.outputs = 2


@TABLE.operators("SequenceMap")
def _sequence_map(d: Draft) -> None:
    from onnx import defs

    from narrowpass_testing.random_models._builder import Draft as Inner

    inner = Inner(d.builder, defs.get_schema("SequenceConstruct", d.builder.opset))
    first = d.numbers.standard_normal((2, 3)).astype(np.float32)
    inner.operand(first, constant=0.2)
    inner.operand(d.numbers.standard_normal((2, 3)).astype(np.float32))
    found = d.builder.add(inner)
    if found is None:
        raise UnfitError
    d.inputs.append(found[0])
    d.arrays.append(None)
    name = d.builder.name("e")
    body, last = _grown(d, name, first, d.pick(1, 2))
    d.set("body", body.body([name], [last]))
