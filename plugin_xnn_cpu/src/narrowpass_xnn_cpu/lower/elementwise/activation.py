"""Activations and mathematical functions of one operand that own kernels compute."""

from __future__ import annotations

from narrowpass_planning.graph.facts import Facts
from narrowpass_xnn_cpu.lower.builder import Builder
from narrowpass_xnn_cpu.lower.elementwise.typed import MathFunction
from narrowpass_xnn_cpu.lower.layout import common_layout
from narrowpass_xnn_cpu.lower.op import Op, check_floats
from narrowpass_xnn_cpu.lower.rule import Rule, rules
from narrowpass_xnn_cpu.lower.steps import Binary

_SELU = 1.67326319217681884765625, 1.05070102214813232421875

_PARAMETERS: dict[str, tuple[str, tuple[tuple[str, float], ...]]] = {
    "Acos": ("acos", ()),
    "Acosh": ("acosh", ()),
    "Asin": ("asin", ()),
    "Asinh": ("asinh", ()),
    "Atan": ("atan", ()),
    "Atanh": ("atanh", ()),
    "Celu": ("celu", (("alpha", 1.0),)),
    "Cos": ("cos", ()),
    "Cosh": ("cosh", ()),
    "Elu": ("elu", (("alpha", 1.0),)),
    "Erf": ("erf", ()),
    "HardSigmoid": ("hard sigmoid", (("alpha", 0.2), ("beta", 0.5))),
    "Mish": ("mish", ()),
    "Selu": ("selu", (("alpha", _SELU[0]), ("gamma", _SELU[1]))),
    "Shrink": ("shrink", (("lambd", 0.5), ("bias", 0.0))),
    "Sin": ("sin", ()),
    "Sinh": ("sinh", ()),
    "Softplus": ("softplus", ()),
    "Softsign": ("softsign", ()),
    "Tan": ("tan", ()),
    "ThresholdedRelu": ("thresholded relu", (("alpha", 1.0),)),
}
"""Names of ``NP_FUNCTION_*``, with the attributes that are parameters and their defaults."""

_SELU_OF_1 = 1.6732, 1.0507


def _check(op: Op, facts: Facts) -> str | None:
    return check_floats(op, facts)


def _activation(op: Op, builder: Builder) -> None:
    name, attributes = _PARAMETERS[op.kind]
    parameters = tuple(op.get(key, default) for key, default in attributes)
    if op.kind == "Selu" and op.version < 6:
        parameters = op.get("alpha", _SELU_OF_1[0]), op.get("gamma", _SELU_OF_1[1])
    given = op.required(0)
    perm = builder.layout(given)
    builder.compute(MathFunction(name, parameters), [builder.slot_of(given, perm)], op.output, perm)


def _check_swiglu(op: Op, facts: Facts) -> str | None:
    return check_floats(op, facts, 2)


def _swiglu(op: Op, builder: Builder) -> None:
    gate, factor, output = op.required(0), op.required(1), op.output
    perm = common_layout(builder, [gate, factor], builder.rank(gate))
    swish = MathFunction("swish", (op.get("alpha", 1.0),))
    gated = builder.intermediate(swish, [builder.slot_of(gate, perm)], output)
    builder.compute(Binary("multiply"), [gated, builder.slot_of(factor, perm)], output, perm)


RULES: tuple[Rule, ...] = (
    *rules(*_PARAMETERS, lower=_activation, check=_check),
    *rules("SwiGLU", lower=_swiglu, check=_check_swiglu),
)
