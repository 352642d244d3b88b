"""Mixtures of experts (Shazeer et al., arXiv:1701.06538), whose weights are stacked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from narrowpass_expansion.emitter import Emitter, Unsupported

_ACTIVATIONS: dict[str, Callable[[Emitter, ir.Value], ir.Value]] = {
    "identity": lambda e, x: x,
    "relu": lambda e, x: e.op("Relu", x),
    "gelu": lambda e, x: e.op("Gelu", x, approximate="tanh"),
    "silu": lambda e, x: e.op("Mul", x, e.op("Sigmoid", x)),
}
"""As onnxruntime's kernel computes them: its GELU is the approximation by tanh."""


def mixture(e: Emitter) -> Sequence[ir.Value]:
    """Emit MoE: every expert for every row, and a sum weighted by the router.

    Experts that the router has not chosen have the weight 0: so an expert's result that is infinite
    or NaN turns rows into NaN that it was not chosen for.

    Raises:
        Unsupported: an activation, or a form of the router, that is not expanded.
    """
    name, k = str(e.get("activation_type", "relu")), int(e.get("k", 1))
    if name not in _ACTIVATIONS:
        raise Unsupported(f"its activation_type is {name!r}, and not {', '.join(_ACTIVATIONS)}")
    if e.get("use_sparse_mixer", 0):
        raise Unsupported("its router is a sparse mixer")
    x, router = e.required(0, "input"), e.required(1, "router_probs")
    first, second = e.required(2, "fc1_experts_weights"), e.required(4, "fc2_experts_weights")
    dims = e.dims(first)
    width = dims[-1]
    if len(dims) != 3 or not isinstance(width, int):
        raise Unsupported(f"its fc1_experts_weights are {list(dims)}, and not [E, N, K]")
    rows = e.reshape(x, -1, width)
    hidden = _ACTIVATIONS[name](e, _linear(e, rows, first, 3))
    third = e.input(6)
    if third is not None:
        hidden = e.op("Mul", hidden, _linear(e, rows, third, 7))
    results = _linear(e, hidden, second, 5)
    weights = e.unsqueeze(e.transpose(_routed(e, router, k), 1, 0), 2)
    total = e.op("ReduceSum", e.op("Mul", results, weights), e.const([0]), keepdims=0)
    return [e.op("Reshape", total, e.op("Shape", x))]


def _linear(e: Emitter, rows: ir.Value, weights: ir.Value, bias: int) -> ir.Value:
    """Return rows [M, K] or [E, M, K] times each matrix of [E, N, K], plus a bias [E, N]."""
    output = e.op("MatMul", rows, e.transpose(weights, 0, 2, 1))
    added = e.input(bias)
    return output if added is None else e.op("Add", output, e.unsqueeze(added, 1))


def _routed(e: Emitter, router: ir.Value, k: int) -> ir.Value:
    """Return each expert's weight for each row, [M, E]: 0 for all but the `k` most probable."""
    probable = e.op("Softmax", router, axis=-1)
    most, index = e.ops("TopK", probable, e.const([k]), outputs=2, axis=-1)
    if e.get("normalize_routing_weights", 0):
        most = e.op("Div", most, e.op("ReduceSum", most, e.const([-1]), keepdims=1))
    return e.op("ScatterElements", e.op("Sub", probable, probable), index, most, axis=-1)
