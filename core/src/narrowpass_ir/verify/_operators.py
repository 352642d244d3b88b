"""What the operator schemas demand of a node: arity, attributes, types.

A digest of a schema is computed once per verification and operator version; the outcome for one
combination of input and output types is kept too, since large models repeat few of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
import onnx.defs
import onnx_ir as ir

from narrowpass_ir.verify._attributes import TYPE_ATTRIBUTES, stated_type

STANDARD_DOMAINS = frozenset(
    {
        "",
        "ai.onnx",
        "ai.onnx.ml",
        "ai.onnx.training",
        "ai.onnx.preview",
        "ai.onnx.preview.training",
    }
)

# Without a schema since opset 1, yet old models hold them and onnx.checker lets them through.
_EXPERIMENTAL = frozenset(
    {
        "ATen",
        "Affine",
        "ConstantFill",
        "Crop",
        "DynamicSlice",
        "GRUUnit",
        "GivenTensorFill",
        "ImageScaler",
        "ParametricSoftplus",
        "Scale",
        "ScaledTanh",
    }
)
_ONNXRUNTIME = frozenset({"LayerNormalization", "SimplifiedLayerNormalization"})
"""Operators that onnxruntime has in ONNX's domain, in versions where ONNX has none."""

# Two properties of schemas that onnx does not show to Python.
_OPEN_ATTRIBUTES = frozenset({"LayerNormalization"})
_BATCH_NORM_TRAINING_FROM = 14

_UNBOUNDED = 1 << 30

_Option = onnx.defs.OpSchema.FormalParameterOption

Types = tuple[str | None, ...]
"""One entry per input or output: its type's text, None if unknown, ``""`` if left out."""


@dataclass(frozen=True)
class _Parameter:
    """One formal input or output. `group` is None where its type is tied to no other."""

    name: str
    required: bool
    types: frozenset[str]
    group: str | None


@dataclass(frozen=True)
class Operator:
    """The digest of one version of an operator's schema."""

    name: str
    title: str
    inputs: tuple[_Parameter, ...]
    outputs: tuple[_Parameter, ...]
    input_range: tuple[int, int]
    output_range: tuple[int, int]
    output_counts: frozenset[int]
    attributes: Mapping[str, int]
    required: frozenset[str]
    open_attributes: bool
    type_attribute: str | None
    _outcomes: dict[tuple[Types, Types], tuple[str, ...]] = field(default_factory=dict)

    def signature_problems(self, inputs: Types, outputs: Types) -> tuple[str, ...]:
        """Return what is wrong with these inputs and outputs.

        Args:
            inputs: as they are written, trailing empty ones too.
            outputs: without trailing empty ones, which a file does not hold.
        """
        key = (inputs, outputs)
        found = self._outcomes.get(key)
        if found is None:
            found = tuple(self._find_signature_problems(inputs, outputs))
            self._outcomes[key] = found
        return found

    def _find_signature_problems(self, inputs: Types, outputs: Types) -> Iterable[str]:
        wrong_count = [
            *_count_problem(self.title, "input", len(inputs), self.input_range),
            *_count_problem(self.title, "output", len(outputs), self.output_range),
        ]
        if wrong_count:
            return wrong_count
        if self.output_counts and len(outputs) not in self.output_counts:
            choices = " or ".join(map(str, sorted(self.output_counts)))
            return [f"has {len(outputs)} outputs, but {self.title} takes {choices}"]
        bound: dict[str, tuple[str, str]] = {}
        return [
            *_type_problems("input", self.inputs, inputs, bound),
            *_type_problems("output", self.outputs, outputs, bound),
        ]

    def attribute_problems(
        self, attributes: Mapping[str, ir.Attr], outputs: Types
    ) -> Iterator[str]:
        """Yield what is wrong with a node's attributes, and where its first output defies one."""
        known = self.attributes
        for name, attribute in attributes.items():
            expected = known.get(name)
            if expected is None:
                if not self.open_attributes and not name.startswith("__"):
                    yield f"has an attribute {name!r}, which {self.title} does not define"
            elif attribute.type != expected:
                yield (
                    f"attribute {name!r} is of type {attribute.type.name}, but {self.title} "
                    f"defines it as {ir.AttributeType(expected).name}"
                )
        for name in sorted(self.required - attributes.keys()):
            yield f"lacks the attribute {name!r}, which {self.title} requires"
        stated = stated_type(self.type_attribute, attributes)
        if stated and outputs and outputs[0] not in (None, "", stated[1]):
            yield f"output 0 is {outputs[0]}, but attribute {stated[0]!r} sets it to {stated[1]}"


def _count_problem(title: str, what: str, count: int, limits: tuple[int, int]) -> list[str]:
    low, high = limits
    if low <= count <= high:
        return []
    if low == high:
        takes = str(low)
    elif high >= _UNBOUNDED:
        takes = f"at least {low}"
    else:
        takes = f"{low} to {high}"
    return [f"has {count} {what}{'' if count == 1 else 's'}, but {title} takes {takes}"]


def _type_problems(
    what: str,
    formals: Sequence[_Parameter],
    actual: Types,
    bound: dict[str, tuple[str, str]],
) -> Iterable[str]:
    """Match types with formal parameters; the last formal one stands for all that follow."""
    for index, text in enumerate(actual):
        formal = formals[min(index, len(formals) - 1)]
        label = f"{what} {index} ({formal.name})"
        if text == "":
            if formal.required and index < len(formals):
                yield f"{label} is left out, but it is not optional"
            continue
        if text is None:
            continue
        if text not in formal.types:
            yield f"{label} is {text}, but may be only {_choices(formal.types)}"
            continue
        if formal.group is None:
            continue
        other, other_text = bound.setdefault(formal.group, (label, text))
        if other_text != text:
            yield f"{label} is {text}, but must have the type of {other}, which is {other_text}"


def _choices(types: frozenset[str]) -> str:
    shown = sorted(types)
    if len(shown) <= 8:
        return ", ".join(shown)
    return ", ".join(shown[:8]) + f" and {len(shown) - 8} others"


def _parameter(formal: onnx.defs.OpSchema.FormalParameter) -> _Parameter:
    types = frozenset(formal.types)
    tied = formal.is_homogeneous and formal.type_str not in types
    return _Parameter(
        formal.name,
        formal.option == _Option.Single,
        types,
        formal.type_str if tied else None,
    )


def _number(kind: Any) -> int:
    """Return the number of an `onnx.defs` attribute type, whose stub hides that it is an enum."""
    return int(kind.value)


def _digest(schema: onnx.defs.OpSchema) -> Operator:
    name = schema.name
    standard = schema.domain == ""
    counts: frozenset[int] = frozenset()
    if standard and name == "BatchNormalization":
        training = 3 if schema.since_version >= _BATCH_NORM_TRAINING_FROM else 5
        counts = frozenset({1, training})
    domain = schema.domain or "ai.onnx"
    return Operator(
        name=name if standard else f"{domain}.{name}",
        title=f"{name} of {domain} {schema.since_version}",
        inputs=tuple(map(_parameter, schema.inputs)),
        outputs=tuple(map(_parameter, schema.outputs)),
        input_range=(schema.min_input, schema.max_input),
        output_range=(schema.min_output, schema.max_output),
        output_counts=counts,
        attributes={key: _number(item.type) for key, item in schema.attributes.items()},
        required=frozenset(key for key, item in schema.attributes.items() if item.required),
        open_attributes=standard and name in _OPEN_ATTRIBUTES,
        type_attribute=TYPE_ATTRIBUTES.get(name) if standard else None,
    )


def find_schema(domain: str, op_type: str, version: int) -> onnx.defs.OpSchema | None:
    """Return the schema of an operator as of an opset version, None where there is none."""
    if not onnx.defs.has(op_type, version, domain):
        return None
    return onnx.defs.get_schema(op_type, version, domain)


class Operators:
    """Digests of operator schemas, computed when first asked for."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int], Operator | str | None] = {}

    def find(self, domain: str, op_type: str, version: int) -> Operator | str | None:
        """Look an operator up.

        Returns:
            Its digest; a sentence where a standard domain lacks it; None where nothing is
            known of it, or nothing is demanded (a deprecated operator).
        """
        key = (domain, op_type, version)
        if key not in self._known:
            self._known[key] = _look_up(domain, op_type, version)
        return self._known[key]


def _look_up(domain: str, op_type: str, version: int) -> Operator | str | None:
    schema = find_schema(domain, op_type, version)
    if schema is not None:
        return None if schema.deprecated else _digest(schema)
    if domain not in STANDARD_DOMAINS or (domain == "" and op_type in _EXPERIMENTAL | _ONNXRUNTIME):
        return None
    shown = domain or "ai.onnx"
    if not onnx.defs.has(op_type, domain):
        return f"{op_type} is no operator of the domain {shown!r}"
    newest = onnx.defs.get_schema(op_type, domain).since_version
    return (
        f"{op_type} is not in version {version} of the domain {shown!r}, which the model "
        f"imports; its newest definition is of version {newest}"
    )
