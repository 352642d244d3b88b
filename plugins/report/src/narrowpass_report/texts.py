"""Texts that the data of a page holds once, and the classes of element types."""

from __future__ import annotations

import onnx_ir as ir

PRECISIONS = {
    "float64": "float64",
    "float32": "float32",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "narrow8": "8 bits or fewer",
    "other": "integers and others",
    "unknown": "unknown",
}
"""What the page calls the classes that `precision` returns; ``report.css`` has their colours."""

_FLOATS = {
    ir.DataType.DOUBLE: "float64",
    ir.DataType.FLOAT: "float32",
    ir.DataType.FLOAT16: "float16",
    ir.DataType.BFLOAT16: "bfloat16",
}
_OTHERS = {ir.DataType.BOOL, ir.DataType.STRING}


def precision(dtype: ir.DataType | None) -> str:
    """Return the class of element types that the page has a colour for."""
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return "unknown"
    if dtype in _FLOATS:
        return _FLOATS[dtype]
    return "narrow8" if dtype not in _OTHERS and dtype.bitwidth <= 8 else "other"


def dtype_name(dtype: ir.DataType | None) -> str:
    """Return the name of an element type, with the bits of each; nothing where it is not known."""
    if dtype is None or dtype == ir.DataType.UNDEFINED:
        return ""
    return _FLOATS.get(dtype, dtype.name.lower())


class Texts:
    """Texts by number, since the same ones are shown for many nodes.

    Attributes:
        all: the texts in the order of their numbers.
    """

    def __init__(self) -> None:
        self.all: list[str] = []
        self._numbers: dict[str, int] = {}

    def add(self, text: str) -> int:
        """Return the number of a text."""
        number = self._numbers.setdefault(text, len(self.all))
        if number == len(self.all):
            self.all.append(text)
        return number
