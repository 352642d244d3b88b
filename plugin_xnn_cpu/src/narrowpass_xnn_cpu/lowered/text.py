"""Text format of a lowered partition, one line for each operation.

The text does not contain the elements of constants: a parsed partition can be printed, compared and
verified, but not packed. ::

    input %0 "x" float32
    %1 "x" float32 = transpose(%0) {perm: [0, 2, 3, 1]}
    %2 "y" float32 = convolution(%1) {weight: weight(float32[8, 3, 3, 4] "1f.." ""), ..} node "c"
    place "y" %2 [0, 2, 3, 1]
    output "y" %2
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from narrowpass.errors import UsageError
from narrowpass_planning.plan.partition import ValueLayout
from narrowpass_planning.plan.shapes import ShapeNode
from narrowpass_planning.plan.step import Array, Slot
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp
from narrowpass_xnn_cpu.lowered.partition import Item, LoweredPartition
from narrowpass_xnn_cpu.lowered.values import Reader, digest_of, dtype_of, fields_text, text_of

_HASHED = 1 << 16
"""Elements up to which the digest of a constant operand is printed."""


@dataclass(eq=False)
class PrintedSlot(Slot):
    """The slot of a constant that was parsed from text, without its elements.

    Attributes:
        digest: of the elements.
    """

    digest: str = ""


Facts = Mapping[str, Any]
"""Attributes that later stages add to an operation: kernel, packed bytes, shape, call."""


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
            digest = json.dumps(_digest(slot, slot.constant))
            self._lines.append(f"constant {self._declared(slot)}[{dims}] {digest}")
        elif slot not in self._numbers:
            self._lines.append(f"unwritten {self._declared(slot)}")
        return f"%{self._numbers[slot]}"

    def _op(self, op: LoweredOp) -> str:
        operands = ", ".join(map(self._read, op.operands))
        line = f"{self._declared(op.output)} = {op.computation.mnemonic}({operands})"
        fields = fields_text(op.computation)
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


def _digest(slot: Slot, array: Array) -> str:
    if isinstance(slot, PrintedSlot):
        return slot.digest
    return digest_of(array) if array.size <= _HASHED else ""


def _shape_line(node: ShapeNode) -> str:
    reads = "shapes" if node.by_shape else "elements"
    inputs, outputs = text_of(node.inputs), text_of(node.outputs)
    return f"shape_node {json.dumps(node.name)} {reads} {inputs} -> {outputs}"


def partition_lines(
    partition: LoweredPartition, facts: Mapping[LoweredOp, Facts] | None = None
) -> list[str]:
    """Return a partition as lines of text, with attributes of later stages."""
    return _Printer(partition, facts or {}).lines()


class PartitionReader:
    """Parser of a partition.

    Args:
        computations: by mnemonic.
        classes: of the dataclasses that attributes may name, by name.

    Attributes:
        facts: attributes that later stages have added to operations.
    """

    def __init__(
        self,
        computations: Mapping[str, type[Computation]],
        classes: Mapping[str, type[Any]],
    ) -> None:
        self._computations = computations
        self._classes: dict[str, type[Any]] = dict(classes)
        self._classes.update((each.__name__, each) for each in computations.values())
        self.facts: dict[LoweredOp, Facts] = {}
        self._slots: dict[str, Slot] = {}
        self._items: list[Item] = []
        self._inputs: dict[str, Slot] = {}
        self._fixed: dict[str, Slot] = {}
        self._outputs: dict[str, Slot] = {}
        self._places: list[ValueLayout] = []

    def read(self, lines: Iterable[tuple[int, str]]) -> LoweredPartition:
        """Return the partition of numbered lines.

        Raises:
            UsageError: a line that cannot be read; the message names it.
        """
        for number, line in lines:
            reader = Reader(line, number, self._classes)
            self._line(reader)
            if not reader.ended:
                raise reader.fail(f"{reader.peek()!r} is too much")
        return LoweredPartition(
            tuple(self._items), self._inputs, self._outputs, self._fixed, tuple(self._places)
        )

    def _line(self, reader: Reader) -> None:
        if reader.peek().startswith("%"):
            self._op(reader)
            return
        word = reader.next("word")
        if word in ("input", "fixed"):
            known = self._inputs if word == "input" else self._fixed
            name = reader.string()
            known[name] = self._declared(reader)
        elif word == "constant":
            self._constant(reader)
        elif word == "unwritten":
            self._declared(reader)
        elif word == "shape_node":
            self._items.append(_shape_node(reader))
        elif word == "place":
            name, slot = reader.string(), self._known(reader)
            self._places.append(ValueLayout(name, slot, reader.value()))
        elif word == "output":
            name = reader.string()
            self._outputs[name] = self._known(reader)
        else:
            raise reader.fail(f"there is no {word!r}")

    def _known(self, reader: Reader) -> Slot:
        name = reader.next("slot")
        if name not in self._slots:
            raise reader.fail(f"{name} is not defined before")
        return self._slots[name]

    def _declared(self, reader: Reader) -> Slot:
        number, name, dtype = reader.next("slot"), reader.string(), dtype_of(reader.next("word"))
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = Slot(name, dtype)
        elif (slot.name, slot.dtype) != (name, dtype):
            raise reader.fail(f"{number} was declared as {slot.name!r} {slot.dtype.name}")
        return slot

    def _constant(self, reader: Reader) -> None:
        number, name, dtype = reader.next("slot"), reader.string(), dtype_of(reader.next("word"))
        elements = np.broadcast_to(np.zeros((), dtype), reader.shape())
        self._slots[number] = PrintedSlot(name, dtype, elements, reader.string())

    def _op(self, reader: Reader) -> None:
        output = self._declared(reader)
        reader.expect("=")
        mnemonic = reader.next("word")
        if mnemonic not in self._computations:
            raise reader.fail(f"there is no computation {mnemonic!r}")
        reader.expect("(")
        operands = tuple(reader.many(lambda: self._known(reader), ")"))
        name = self._computations[mnemonic].__name__
        end = "}" if reader.take("{") else ""
        computation = reader.instance(name, end) if end else reader.create(name, {})
        layout = reader.value() if reader.take("layout") else ()
        nodes: list[str] = []
        while reader.take("node"):
            nodes.append(reader.string())
        note = reader.string() if reader.take("note") else ""
        op = LoweredOp(computation, operands, output, layout, tuple(nodes), note)
        self._items.append(op)
        if reader.take("with"):
            reader.expect("{")
            self.facts[op] = dict(reader.many(reader.field, "}"))


def _shape_node(reader: Reader) -> ShapeNode:
    name, reads, inputs = reader.string(), reader.next("word"), reader.value()
    reader.expect("->")
    return ShapeNode(name, inputs, reader.value(), reads == "shapes", _no_evaluation)


def _no_evaluation(given: Sequence[Any]) -> Sequence[Array]:
    raise UsageError("a lowered plan that was read from text cannot be run")
