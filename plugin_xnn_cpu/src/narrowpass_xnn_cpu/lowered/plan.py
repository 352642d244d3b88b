"""A lowered plan: the operations of a method after one stage, with printer and parser."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from narrowpass.errors import UsageError
from narrowpass_xnn_cpu.lowered.graph import GraphOp
from narrowpass_xnn_cpu.lowered.op import Computation, LoweredOp
from narrowpass_xnn_cpu.lowered.partition import LoweredPartition
from narrowpass_xnn_cpu.lowered.text import Facts, PartitionReader, partition_lines
from narrowpass_xnn_cpu.lowered.values import Reader

GRAPH_PLACES = ("graph", "host", "shapes", "weights")
"""Sections of operations that are not lowered; ``graph`` before partitioning."""


@dataclass(frozen=True)
class Section:
    """Operations that run at one place.

    Attributes:
        place: one of `GRAPH_PLACES`, or ``native``.
        body: operations of the graph, or a lowered native partition.
        facts: attributes that later stages add to lowered operations.
    """

    place: str
    body: tuple[GraphOp, ...] | LoweredPartition
    facts: Mapping[LoweredOp, Facts] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the section as text."""
        if isinstance(self.body, LoweredPartition):
            return ["lowered {", *_indented(partition_lines(self.body, self.facts)), "}"]
        return [f"{self.place} {{", *_indented([op.text() for op in self.body]), "}"]


def _indented(lines: Sequence[str]) -> list[str]:
    return [f"  {line}" for line in lines]


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
        """Return the plan as text, which `read_plans` reads back."""
        lines = [f"plan {json.dumps(self.stage)} {json.dumps(self.method)} {{"]
        for section in self.sections:
            lines += _indented(section.lines())
        return "\n".join([*lines, "}", ""])


def read_plans(
    text: str,
    computations: Mapping[str, type[Computation]],
    classes: Mapping[str, type[Any]],
) -> list[LoweredPlan]:
    """Parse plans.

    Args:
        text: of one or more plans.
        computations: by mnemonic.
        classes: the dataclasses that attributes may name, by name.

    Raises:
        UsageError: a line is malformed; the message names it.
    """
    return list(_Plans(text, computations, classes).plans())


class _Plans:
    def __init__(
        self,
        text: str,
        computations: Mapping[str, type[Computation]],
        classes: Mapping[str, type[Any]],
    ) -> None:
        self._lines = iter(enumerate(text.splitlines(), start=1))
        self._computations, self._classes = computations, classes

    def plans(self) -> Iterator[LoweredPlan]:
        for number, line in self._lines:
            if not line.strip():
                continue
            reader = Reader(line, number, self._classes)
            reader.expect("plan")
            stage, method = reader.string(), reader.string()
            reader.expect("{")
            yield LoweredPlan(stage, method, tuple(self._sections()))

    def _sections(self) -> Iterator[Section]:
        for number, line in self._lines:
            reader = Reader(line, number, self._classes)
            if reader.take("}"):
                return
            place = reader.next("word")
            if place not in (*GRAPH_PLACES, "native", "lowered"):
                raise reader.fail(f"there is no section {place!r}")
            reader.expect("{")
            body = list(self._body())
            if place == "lowered":
                lowered = PartitionReader(self._computations, self._classes)
                yield Section("native", lowered.read(body), lowered.facts)
            else:
                readers = (Reader(line, number, self._classes) for number, line in body)
                yield Section(place, tuple(map(GraphOp.read, readers)))
        raise UsageError("the plan ends early: '}' is missing")

    def _body(self) -> Iterator[tuple[int, str]]:
        for number, line in self._lines:
            if line.strip() == "}":
                return
            yield number, line
        raise UsageError("the plan ends early: '}' is missing")
