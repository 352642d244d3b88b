"""What operator sets and the schemas of operators demand of a node: arity, attributes, types.

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

_DTYPES: tuple[str, ...] = tuple(
    ir.DataType(number).name.lower() for number in range(max(ir.DataType) + 1)
)
# Indexed by the enum's number: hashing an enum member costs more than the rest of a look-up.
_TENSORS: tuple[str | None, ...] = (None, *(f"tensor({name})" for name in _DTYPES[1:]))

_WRAPPERS: dict[type, str] = {
    ir.SparseTensorType: "sparse_tensor",
    ir.SequenceType: "seq",
    ir.OptionalType: "optional",
}


def type_text(kind: Any) -> str | None:
    """Return the ONNX text of an `onnx_ir` type, or None where it is not fully known."""
    if type(kind) is ir.TensorType:
        return _TENSORS[kind.dtype]
    wrapper = _WRAPPERS.get(type(kind))
    if wrapper is None:
        return None
    if isinstance(kind, ir.SparseTensorType):
        return f"{wrapper}({_DTYPES[kind.dtype]})" if kind.dtype else None
    inner = type_text(kind.elem_type)
    return None if inner is None else f"{wrapper}({inner})"


def tensor_text(dtype: int) -> str | None:
    """Return the text of a dense tensor type, None for ``UNDEFINED`` or an unknown number."""
    return _TENSORS[dtype] if 0 <= dtype < len(_TENSORS) else None


def dtype_text(kind: Any) -> str | None:
    """Return ``float`` for a dense tensor, the whole type's text otherwise, None if unknown."""
    text = type_text(kind)
    if text is None or not isinstance(kind, ir.TensorType):
        return text
    return _DTYPES[kind.dtype]


# Attributes that say what the first output's element type is.
TYPE_ATTRIBUTES: Mapping[str, str] = {
    "Bernoulli": "dtype",
    "BitCast": "to",
    "BlackmanWindow": "output_datatype",
    "Cast": "to",
    "Constant": "value",
    "ConstantOfShape": "value",
    "DequantizeLinear": "output_dtype",
    "EyeLike": "dtype",
    "HammingWindow": "output_datatype",
    "HannWindow": "output_datatype",
    "MelWeightMatrix": "output_datatype",
    "Multinomial": "dtype",
    "QuantizeLinear": "output_dtype",
    "RandomNormal": "dtype",
    "RandomNormalLike": "dtype",
    "RandomUniform": "dtype",
    "RandomUniformLike": "dtype",
}
_CONSTANT_ATTRIBUTES: Mapping[str, str] = {
    "value_float": "tensor(float)",
    "value_floats": "tensor(float)",
    "value_int": "tensor(int64)",
    "value_ints": "tensor(int64)",
    "value_string": "tensor(string)",
    "value_strings": "tensor(string)",
}


def attribute_problems(
    attributes: Mapping[str, ir.Attr], function: ir.Function | None
) -> Iterator[str]:
    """Yield what is wrong with a node's attributes, whatever its operator.

    Args:
        attributes: as the node lists them.
        function: the function that the node is in, None outside of functions.
    """
    for key, attribute in attributes.items():
        if attribute.name != key:
            yield f"attribute {key!r} is named {attribute.name!r} in its own field"
        reference = attribute.ref_attr_name
        if reference is None:
            if attribute.value is None and attribute.type != ir.AttributeType.UNDEFINED:
                yield f"attribute {key!r} has no value"
        elif function is None:
            yield f"attribute {key!r} refers to {reference!r} of a function, but stands in none"
        elif reference not in function.attributes:
            yield (
                f"attribute {key!r} refers to {reference!r}, which the function does not declare"
            )


def stated_type(name: str | None, attributes: Mapping[str, ir.Attr]) -> tuple[str, str] | None:
    """Return the attribute that states the type of a node's first output, and that type.

    Args:
        name: the operator's entry in `TYPE_ATTRIBUTES`, None where it has none.
        attributes: the node's.
    """
    if name is None:
        return None
    if name == "value":
        return _constant_type(attributes)
    attribute = attributes.get(name)
    if attribute is None or attribute.type != ir.AttributeType.INT or attribute.is_ref():
        return None
    text = tensor_text(attribute.value)
    return None if text is None else (name, text)


def _constant_type(attributes: Mapping[str, ir.Attr]) -> tuple[str, str] | None:
    attribute = attributes.get("value")
    if attribute is not None:
        if attribute.type != ir.AttributeType.TENSOR or attribute.value is None:
            return None
        text = tensor_text(attribute.value.dtype)
        return None if text is None else ("value", text)
    for name, stated in _CONSTANT_ATTRIBUTES.items():
        if name in attributes:
            return name, stated
    return None


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


# Older models have no opset imports: all that they hold is of version 1.
_IMPORTS_SINCE_IR_VERSION = 3


def opset_versions(model: ir.Model) -> dict[str, int]:
    """Return the versions that the main graph imports, by domain; ``ai.onnx`` is ``""``."""
    if not model.opset_imports and model.ir_version < _IMPORTS_SINCE_IR_VERSION:
        return {"": 1}
    return normalized(model.opset_imports)


def versions_anywhere(model: ir.Model) -> dict[str, int]:
    """Return the main graph's versions, and those of domains that only functions import."""
    versions = opset_versions(model)
    for function in model.functions.values():
        for domain, version in normalized(function.opset_imports).items():
            versions.setdefault(domain, version)
    return versions


def normalized(imports: Mapping[str, int]) -> dict[str, int]:
    """Return imports with ``""`` for ``ai.onnx``; where both are imported, ``""`` counts."""
    return {
        "" if domain == "ai.onnx" else domain: version
        for domain, version in sorted(imports.items(), reverse=True)
    }


def opset_problems(versions: Mapping[str, int]) -> Iterator[str]:
    """Yield which imported versions are out of range.

    Files import domains that no node of theirs uses, in versions of their own: beside the main
    domain, only the loader refuses what is too new, and only where a node uses it.
    """
    newest = onnx.defs.onnx_opset_version()
    for domain, version in versions.items():
        if version < 1:
            yield f"version {version} of the domain {domain!r} is imported; versions start at 1"
        elif domain == "" and version > newest:
            yield f"version {version} of the domain 'ai.onnx' is imported; known are 1 to {newest}"


def opset_conflict(
    domain: str, op_type: str, version: int, model_version: int | None
) -> Iterator[str]:
    """Yield a problem where a function's version of an operator differs from the model's.

    The operator is one that onnx defines, in the function's version.
    """
    if model_version is None or model_version == version:
        return
    ours = find_schema(domain, op_type, version)
    theirs = find_schema(domain, op_type, model_version)
    if ours is not None and theirs is not None and ours.since_version == theirs.since_version:
        return
    yield (
        f"is of version {version} of the domain {domain or 'ai.onnx'!r} in the function, but "
        f"the model imports version {model_version}, which defines it otherwise"
    )


CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def control_flow_problems(node: ir.Node, inputs: Types, outputs: Types) -> Iterator[str]:
    """Yield where an If, Loop, Scan or SequenceMap node and its graphs disagree.

    Args:
        node: a node of the standard domain that is one of `CONTROL_FLOW`.
        inputs: types of its inputs.
        outputs: types of its outputs, without trailing empty ones.
    """
    # Results that the node drops are still results of its graphs.
    outputs = (*outputs, *[""] * (len(node.outputs) - len(outputs)))
    if node.op_type == "If":
        for branch in ("then_branch", "else_branch"):
            graph = _body(node, branch)
            if graph is not None:
                yield from _matched(branch, "output", graph.outputs, outputs)
        return
    body = _body(node, "body")
    if body is None:
        return
    if node.op_type == "Loop":
        # The trip count is not an input of the body; it has the iteration number there.
        fed = ("tensor(int64)", "tensor(bool)", *inputs[2:])
        yield from _matched("body", "input", body.inputs, fed)
        yield from _matched("body", "output", body.outputs, ("tensor(bool)", *outputs))
        return
    if node.op_type == "SequenceMap":
        yield from _matched("body", "input", body.inputs, (None,) * len(inputs))
        yield from _matched("body", "output", body.outputs, (None,) * len(outputs))
        return
    # Scan of opset 8 has the lengths of the sequences in front; its body does not see them.
    fed = inputs[1:] if len(body.inputs) == len(inputs) - 1 else inputs
    yield from _matched("body", "input", body.inputs, fed)
    yield from _matched("body", "output", body.outputs, outputs)


def _body(node: ir.Node, name: str) -> ir.Graph | None:
    attribute = node.attributes.get(name)
    if attribute is None or attribute.is_ref() or attribute.type != ir.AttributeType.GRAPH:
        return None
    graph: ir.Graph | None = attribute.value
    return graph


def _matched(where: str, what: str, inner: Sequence[ir.Value], outer: Types) -> Iterator[str]:
    """Match values of a graph with the types that its node has for them."""
    if len(inner) != len(outer):
        yield f"needs {len(outer)} {what}s of its {where}, which has {len(inner)}"
        return
    for index, (value, text) in enumerate(zip(inner, outer, strict=True)):
        found = type_text(value.type)
        if found is not None and text not in (None, "", found):
            yield (
                f"{what} {index} {value_label(value)} of its {where} is {found}, but the node "
                f"sets it to {text}"
            )


def node_label(node: ir.Node) -> str:
    """Name a node by its name, or by what it computes where it has none."""
    domain = f"{node.domain}." if node.domain else ""
    kind = f"{domain}{node.op_type}"
    if node.name:
        return f"node {node.name!r} ({kind})"
    outputs = [value.name for value in node.outputs if value.name]
    if outputs:
        return f"unnamed node ({kind}) that computes {outputs[0]!r}"
    return f"unnamed node ({kind})"


def value_label(value: ir.Value) -> str:
    """Name a value, or say that it has no name."""
    return repr(value.name) if value.name else "without a name"
