"""FusedMatMul, FusedGemm and FusedConv of com.microsoft."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from narrowpass_expansion.activations import scalar_like
from narrowpass_expansion.emitter import Emitter, Unsupported


def matmul(e: Emitter) -> Sequence[ir.Value]:
    """Emit alpha · A·B, with transposes of A and B as the attributes request."""
    a, b = e.required(0, "A"), e.required(1, "B")
    if e.get("transBatchA", 0) or e.get("transBatchB", 0):
        raise Unsupported("transBatchA or transBatchB is set")
    scaled = e.get("alpha", 1.0)
    transposed_a, transposed_b = _transposed(e, a, "transA"), _transposed(e, b, "transB")
    output = e.op("MatMul", transposed_a, transposed_b)
    return [output if scaled == 1 else e.op("Mul", output, scalar_like(e, float(scaled), a))]


def _transposed(e: Emitter, value: ir.Value, name: str) -> ir.Value:
    if not e.get(name, 0):
        return value
    rank = len(e.dims(value))
    if rank < 2:
        return value  # the transpose of a vector is the vector
    return e.transpose(value, *range(rank - 2), rank - 1, rank - 2)


def gemm(e: Emitter) -> Sequence[ir.Value]:
    """Emit a Gemm and its activation."""
    named = {key: e.get(key, None) for key in ("alpha", "beta", "transA", "transB")}
    output = e.op("Gemm", e.required(0, "A"), e.required(1, "B"), e.input(2), **named)
    alpha, beta = e.get("activation_alpha", None), e.get("activation_beta", None)
    gamma = e.get("activation_gamma", None)
    given = [float(item) for item in (alpha, beta, gamma) if item is not None]
    return [apply_activation(e, output, given)]


def convolution(e: Emitter) -> Sequence[ir.Value]:
    """Emit a Conv, the addition of a fourth input, and the activation."""
    names = "auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"
    named = {key: e.get(key, None) for key in names}
    output = e.op("Conv", e.required(0, "X"), e.required(1, "W"), e.input(2), **named)
    added = e.input(3)
    if added is not None:
        output = e.op("Add", output, added)
    return [apply_activation(e, output, [float(x) for x in e.get("activation_params", None) or ()])]


_PARAMETERS = {
    "": (),
    "Relu": (),
    "Tanh": (),
    "Sigmoid": (),
    "Softplus": (),
    "Softsign": (),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "ThresholdedRelu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "Clip": ("min", "max"),
}


def apply_activation(e: Emitter, value: ir.Value, parameters: Sequence[float]) -> ir.Value:
    """Emit the node's `activation`.

    Raises:
        Unsupported: an unknown activation.
    """
    kind = str(e.get("activation", ""))
    if kind not in _PARAMETERS:
        raise Unsupported(f"its activation {kind} is not known")
    if not kind:
        return value
    names = _PARAMETERS[kind]
    if kind == "Clip":
        if len(parameters) != 2:
            raise Unsupported(f"its activation Clip has {len(parameters)} parameters, not 2")
        like = e.required(0, "input")
        return e.op("Clip", value, *(scalar_like(e, bound, like) for bound in parameters))
    return e.op(kind, value, **dict(zip(names, parameters, strict=False)))
