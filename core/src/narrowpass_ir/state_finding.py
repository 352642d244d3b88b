"""Finds the state of models: by the operators that append to it, and by names.

Exporters name pairs of caches differently, but the graph shows what is appended to what: an output
that is the Concat of an input and new rows, or what an attention operator returns as its present
keys and values. States of fixed shape, such as those of recurrent networks, are known by names.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

import onnx_ir as ir

from narrowpass_ir.errors import UsageError
from narrowpass_ir.state import State

_ATTENTION = {
    ("", "Attention"): ((4, 1), (5, 2)),
    ("com.microsoft", "GroupQueryAttention"): ((3, 1), (4, 2)),
    ("com.microsoft", "MultiHeadAttention"): ((6, 1), (7, 2)),
}
"""Indices of past inputs and present outputs of attention operators; rows are axis 2."""
_ROWS = 2

_BASES = re.compile(r"(?i)(.*[._])?(h|c|s|state|states|hidden|cell|mem|memory|cache|ssm|conv)\d*")
"""Names of states of fixed shape, after what `_NEXT` removes."""
_NEXT = re.compile(
    r"(?i)(?:^(?:new|next|present|out|output)[._]?|[._]?(?:next|new|out|output|n|t)$)"
)
_LAST = re.compile(
    r"(?i)(?:^(?:past|last|prev|previous|in|input|initial)[._]?|[._]?(?:in|input|0|prev)$)"
)


def find_states(models: Mapping[str, ir.Model]) -> tuple[State, ...]:
    """Return the states of the methods of a bundle, in the order of the outputs.

    A method that has the output of a state and not its input, as a prefill, begins it.

    Args:
        models: by method.
    """
    found: dict[str, State] = {}
    for model in models.values():
        graph = model.graph
        taken = {state.output for state in found.values()}
        for state in (*_appended(graph), *_named(graph)):
            if state.input not in found and state.output not in taken:
                found[state.input] = state
                taken.add(state.output)
    return tuple(found.values())


def check_states(states: Iterable[State], models: Mapping[str, ir.Model]) -> tuple[State, ...]:
    """Check states that a caller names.

    Raises:
        UsageError: an input or output that no method has, two states of one input or output, or
            an axis that the input does not have.
    """
    states = tuple(states)
    if not states:
        return ()
    inputs = {v.name or "": v.shape for m in models.values() for v in m.graph.inputs}
    outputs = {v.name or "" for m in models.values() for v in m.graph.outputs}
    ranks = {name: None if shape is None else len(shape) for name, shape in inputs.items()}
    return check_states_among(states, ranks, outputs)


def check_states_among(
    states: Iterable[State], ranks: Mapping[str, int | None], outputs: Collection[str]
) -> tuple[State, ...]:
    """Check states as `check_states` does.

    Args:
        states: to check.
        ranks: of the inputs of all methods, by name; None where one is not known.
        outputs: names of the outputs of all methods.

    Raises:
        UsageError: as `check_states`.
    """
    checked: dict[str, State] = {}
    for state in states:
        if state.input not in ranks:
            raise UsageError(f"state {str(state)!r}: no method has an input {state.input!r}")
        if state.output not in outputs:
            raise UsageError(f"state {str(state)!r}: no method has an output {state.output!r}")
        if state.input in checked or any(s.output == state.output for s in checked.values()):
            raise UsageError(f"state {str(state)!r}: its input or output has another state")
        rank = ranks[state.input]
        if state.axis is not None and rank is not None and state.axis >= rank:
            raise UsageError(f"state {str(state)!r}: the input has {rank} axes")
        checked[state.input] = state
    return tuple(checked.values())


def _appended(graph: ir.Graph) -> Iterator[State]:
    """Yield the states that operators of the graph append to."""
    inputs = {id(value) for value in graph.inputs if not value.is_initializer()}
    for output in graph.outputs:
        value = _behind_identities(output)
        node = value.producer()
        if node is None:
            continue
        past, axis = _past_of(node, value)
        past = None if past is None else _behind_identities(past)
        if past is None or id(past) not in inputs:
            continue
        shape = output.shape if past.shape is None else past.shape
        if axis is not None and axis < 0:
            if shape is None:
                continue
            axis += len(shape)
        yield State(past.name or "", output.name or "", axis)


def _past_of(node: ir.Node, output: ir.Value) -> tuple[ir.Value | None, int | None]:
    """Return the operand that a node appends to for this output, and the axis, as the node says."""
    if not node.domain and node.op_type == "Concat" and len(node.inputs) == 2:
        return node.inputs[0], node.attributes.get_int("axis")
    if not node.domain and node.op_type == "TensorScatter":
        return node.inputs[0], None
    for past, present in _ATTENTION.get((node.domain, node.op_type), ()):
        if node.outputs[present : present + 1] == (output,) and past < len(node.inputs):
            return node.inputs[past], _ROWS
    return None, None


def _behind_identities(value: ir.Value) -> ir.Value:
    node = value.producer()
    while node is not None and (node.domain, len(node.inputs)) == ("", 1):
        if node.op_type not in ("Identity", "Concat"):
            break
        source = node.inputs[0]
        if source is None:
            break
        value, node = source, source.producer()
    return value


def _named(graph: ir.Graph) -> Iterator[State]:
    """Yield the states of fixed shape, by their names."""
    outputs = {_base(value.name or "", _NEXT): value for value in reversed(graph.outputs)}
    for value in graph.inputs:
        name = value.name or ""
        base = _base(name, _LAST)
        output = outputs.get(base)
        if output is None or value.is_initializer() or output.name == name:
            continue
        if _BASES.fullmatch(base) and value.dtype == output.dtype and _same_shape(value, output):
            yield State(name, output.name or "")


def _base(name: str, affix: re.Pattern[str]) -> str:
    return affix.sub("", name).lower()


def _same_shape(one: ir.Value, other: ir.Value) -> bool:
    if one.shape is None or other.shape is None or len(one.shape) != len(other.shape):
        return False
    pairs = zip(one.shape, other.shape, strict=True)
    return all(a == b for a, b in pairs if isinstance(a, int) and isinstance(b, int))
