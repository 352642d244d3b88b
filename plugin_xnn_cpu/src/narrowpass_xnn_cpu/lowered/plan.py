"""A lowered plan: the operations of a method after one stage, and their text.

A lowered partition is printed with one line for each operation. Constants are named by the hash of
their content; their elements are not printed. ::

    input "x" %0 "x" float32
    %1 "x" float32 = transpose(%0) {perm: [0, 2, 3, 1]}
    %2 "y" float32 = convolution(%1) {weight: weight(float32[8, 3, 3, 4] "1f.." ""), ..} node "c"
    place "y" %2 [0, 2, 3, 1]
    output "y" %2
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.plan.step import Array, Slot
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.lowered.op import LoweredOp
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition

DIGEST = 12
"""Number of hexadecimal digits of a content name that are printed."""

_HASHED = 1 << 16
"""Elements up to which the digest of a constant operand is printed."""

Facts = Mapping[str, Any]
"""Attributes that later stages add to an operation: kernel, packed bytes, shape, call."""


@dataclass(frozen=True)
class LoweredPlan:
    """The plan of a method after a stage.

    Attributes:
        stage: its name.
        method: the method's name.
        sections: in the order in which they run.
    """

    stage: str
    method: str
    sections: tuple[Section, ...]

    def text(self) -> str:
        """Return the plan as text."""
        lines = [f"plan {json.dumps(self.stage)} {json.dumps(self.method)} {{"]
        for section in self.sections:
            lines += _indented(section.lines())
        return "\n".join([*lines, "}", ""])


@dataclass(frozen=True)
class Section:
    """Operations that run at one place.

    Attributes:
        place: ``graph`` before partitioning; then ``native``, ``host``, ``shapes`` or ``weights``.
        body: lines of text of operations of the graph, or a lowered native partition.
        facts: attributes that later stages add to lowered operations.
    """

    place: str
    body: tuple[str, ...] | LoweredPartition
    facts: Mapping[LoweredOp, Facts] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the section as text."""
        if isinstance(self.body, LoweredPartition):
            return ["lowered {", *_indented(_Printer(self.body, self.facts).lines()), "}"]
        return [f"{self.place} {{", *_indented(self.body), "}"]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


class _Printer:
    def __init__(self, partition: LoweredPartition, facts: Mapping[LoweredOp, Facts]) -> None:
        self._partition, self._facts = partition, facts
        self._numbers: dict[Slot, int] = {}
        self._lines: list[str] = []

    def lines(self) -> list[str]:
        partition = self._partition
        for word, slots in (("input", partition.inputs), ("fixed", partition.fixed)):
            for name, slot in slots.items():
                self._lines.append(f"{word} {json.dumps(name)} {self._declared(slot)}")
        for item in partition.items:
            self._lines.append(_shape_line(item) if isinstance(item, ShapeNode) else self._op(item))
        for place in partition.places:
            order = text_of(place.perm)
            self._lines.append(f"place {json.dumps(place.name)} {self._read(place.slot)} {order}")
        for name, slot in partition.outputs.items():
            self._lines.append(f"output {json.dumps(name)} {self._read(slot)}")
        return self._lines

    def _declared(self, slot: Slot) -> str:
        number = self._numbers.setdefault(slot, len(self._numbers))
        return f"%{number} {json.dumps(slot.name)} {slot.dtype.name}"

    def _read(self, slot: Slot) -> str:
        """Return the name of an operand; a constant is declared before its first use."""
        if slot not in self._numbers and slot.constant is not None:
            dims = ", ".join(map(str, slot.constant.shape))
            digest = _digest_of(slot.constant) if slot.constant.size <= _HASHED else ""
            self._lines.append(f"constant {self._declared(slot)}[{dims}] {json.dumps(digest)}")
        elif slot not in self._numbers:
            self._lines.append(f"unwritten {self._declared(slot)}")
        return f"%{self._numbers[slot]}"

    def _op(self, op: LoweredOp) -> str:
        operands = ", ".join(map(self._read, op.operands))
        line = f"{self._declared(op.output)} = {op.computation.mnemonic}({operands})"
        fields = _fields_text(op.computation)
        line += f" {{{fields}}}" if fields else ""
        if op.layout:
            line += f" layout {text_of(op.layout)}"
        for node in op.nodes:
            line += f" node {json.dumps(node)}"
        line += f" note {json.dumps(op.note)}" if op.note else ""
        facts = self._facts.get(op)
        if not facts:
            return line
        pairs = (f"{name}: {text_of(value)}" for name, value in facts.items())
        return f"{line} with {{{', '.join(pairs)}}}"


def _shape_line(node: ShapeNode) -> str:
    reads = "shapes" if node.by_shape else "elements"
    inputs, outputs = text_of(node.inputs), text_of(node.outputs)
    return f"shape_node {json.dumps(node.name)} {reads} {inputs} -> {outputs}"


def _storage_of(weight: Weight) -> str:
    """Return the storage format of a constant: integers with scales or a narrower float; or ""."""
    if weight.blocks is not None:
        element = weight.blocks.element.replace("int", "uint")
        return f"{element} in blocks of {weight.blocks.size}"
    if weight.quantized is not None:
        axis = "per tensor" if weight.quantized.scale.size == 1 else "per channel"
        return f"{weight.quantized.integers.dtype.name} {axis}"
    if weight.narrow is not None:
        return weight.narrow.dtype.name
    return ""


def text_of(value: object) -> str:
    """Return an attribute as text.

    Raises:
        TypeError: a value of a type without a text format.
    """
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (str, int)):
        return json.dumps(value) if isinstance(value, str) else str(int(value))
    if isinstance(value, (float, np.floating)):
        return _number(float(value))
    if isinstance(value, bytes):
        return f"bytes({json.dumps(base64.b64encode(value).decode())})"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(map(text_of, value))}]"
    if isinstance(value, np.dtype):
        return f"dtype({value.name})"
    if isinstance(value, ir.Value):
        return f"@{json.dumps(value.name or '')}"
    if isinstance(value, Weight):
        dims = ", ".join(map(str, value.shape))
        name = json.dumps(value.identity[:DIGEST])
        return f"weight({value.dtype.name}[{dims}] {name} {json.dumps(_storage_of(value))})"
    if isinstance(value, ir.TensorProtocol):  # of a Constant, which no pass has folded
        return text_of(value.numpy())
    if isinstance(value, np.ndarray):
        dims = ", ".join(map(str, value.shape))
        return f"array({value.dtype.name}[{dims}] {json.dumps(_digest_of(value))})"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return f"{type(value).__name__}({_fields_text(value)})"
    raise TypeError(f"a {type(value).__name__} is no attribute of a lowered operation")


def _fields_text(value: Any) -> str:
    """Return the fields of a dataclass that differ from their defaults."""
    parts = []
    for each in dataclasses.fields(value):
        given = getattr(value, each.name)
        if (
            isinstance(given, Weight)
            or each.default is dataclasses.MISSING
            or given != each.default
        ):
            parts.append(f"{each.name}: {text_of(given)}")
    return ", ".join(parts)


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"


def _digest_of(array: Array) -> str:
    """Return the first digits of the SHA-256 of the elements of an array."""
    raw = np.ascontiguousarray(array).reshape(-1)
    if raw.dtype.kind == "O":
        return hashlib.sha256(repr(raw.tolist()).encode()).hexdigest()[:DIGEST]
    return hashlib.sha256(raw.view(np.uint8).tobytes()).hexdigest()[:DIGEST]
