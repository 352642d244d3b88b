"""Rules of attributes: those that hold for any operator, and those that name a type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx_ir as ir

from narrowpass_ir.verify._types import tensor_text

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
