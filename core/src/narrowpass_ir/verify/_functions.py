"""Rules of model-local functions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import onnx_ir as ir

from narrowpass_ir.verify._problems import value_label

Callee = tuple[str, str, str]
"""A function's domain, name and overload."""


def function_name(identifier: Callee) -> str:
    """Name a function as its callers do."""
    domain, name, overload = identifier
    return f"{domain}.{name}" + (f":{overload}" if overload else "")


def function_problems(key: Callee, function: ir.Function) -> Iterator[str]:
    """Yield what is wrong with a function that its model lists as `key`, apart from its nodes."""
    if key != function.identifier():
        yield f"is listed as {function_name(key)!r}; list it by its own name"
    if not function.name:
        yield "has no name"
    for name in function.graph.initializers:
        yield f"has an initializer {name!r}; functions have none, use a Constant node"
    seen: set[ir.Value] = set()
    for value in function.outputs:
        if value in seen:
            yield f"lists the output {value_label(value)} twice"
        seen.add(value)


def call_problems(function: ir.Function, inputs: int, outputs: int) -> Iterator[str]:
    """Yield what is wrong with a call that has so many inputs and outputs."""
    for what, count, most in (
        ("inputs", inputs, len(function.inputs)),
        ("outputs", outputs, len(function.outputs)),
    ):
        if count > most:
            name = function_name(function.identifier())
            yield f"has {count} {what}, but the function {name!r} has {most}"


def recursion(calls: Mapping[Callee, Iterable[Callee]]) -> list[Callee] | None:
    """Return one cycle of calls, its first function once more at the end; None if there is none."""
    finished: set[Callee] = set()
    for root in calls:
        if root in finished:
            continue
        # An explicit stack: chains of calls may be deeper than Python's.
        path = {root: iter(calls[root])}
        while path:
            current, callees = next(reversed(path.items()))
            callee = next(callees, None)
            if callee is None:
                finished.add(current)
                del path[current]
            elif callee in path:
                members = list(path)
                return [*members[members.index(callee) :], callee]
            elif callee not in finished:
                path[callee] = iter(calls.get(callee, ()))
    return None
