"""Findings that are understood: forms of operators that the oracles get wrong or leave open."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from narrowpass_testing.random_models._cases import Case, Finding
from narrowpass_testing.random_models._elements import Array
from narrowpass_testing.random_models._nodes import Operation, operations

LIST = Path(__file__).with_name("known.toml")
"""What any backend may meet."""
INTEGERS = frozenset(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_PLACE = re.compile(r"(?:(?:at|rows) [a-z0-9 ]+: )?(?P<output>\w+): |.*?node '(?P<node>\w+)'")
"""How messages begin that name an output of the graph, or a node, by its first output."""


@dataclass(frozen=True)
class Known:
    """An entry of the list.

    Attributes:
        operators: one of them is the node that the finding names, or is one on which the output
            that the finding names depends.
        below: operator sets of ONNX below this one; None for all.
        types: of its first operand, "integers" for all of these; none for any.
        attributes: by name, the values that it may have; "" stands for one that is not written.
        feeds: what must be among the feeds of the case, a name of `AMONG`; "" for anything.
        subjects: a pattern that the subject's name must match.
        kinds: kinds of findings.
        message: a pattern that must be found in the message.
        reason: why it is so.
    """

    operators: frozenset[str]
    below: int | None
    types: frozenset[str]
    attributes: dict[str, list[Any]]
    feeds: str
    subjects: str
    kinds: frozenset[str]
    message: str
    reason: str

    def matches(self, case: Case, finding: Finding) -> bool:
        """Report whether a finding is what the entry is about."""
        return (
            re.fullmatch(self.subjects, finding.subject) is not None
            and finding.kind in self.kinds
            and re.search(self.message, finding.message) is not None
            and (not self.feeds or any(map(AMONG[self.feeds], case.feeds.values())))
            and any(map(self._concerns, _concerned(case, finding)))
        )

    def _concerns(self, operation: Operation) -> bool:
        return (
            operation.node.op_type in self.operators
            and (self.below is None or operation.version < self.below)
            and (not self.types or operation.dtype in self.types)
            and all((operation.attribute(n) or "") in v for n, v in self.attributes.items())
        )


def _has(holds: Callable[[Array], Any]) -> Callable[[Array], bool]:
    return lambda array: array.dtype.kind == "f" and bool(np.any(holds(array)))


AMONG: dict[str, Callable[[Array], bool]] = {
    "NaN": _has(np.isnan),
    "infinity": _has(np.isinf),
    "zero": _has(lambda array: array == 0),
    "subnormal": _has(lambda array: (array != 0) & (abs(array) < np.finfo(array.dtype).tiny)),
}
"""What entries may ask of feeds: elements of the floats of numpy."""


def _concerned(case: Case, finding: Finding) -> list[Operation]:
    """Return the nodes that a finding may be about: all of them where it names no place."""
    place = _PLACE.match(finding.message)
    if place is None:
        return operations(case.model)
    if place["output"]:
        return operations(case.model, place["output"])
    found = operations(case.model)
    named = [one for one in found if place["node"] in (one.node.name, *one.node.output)]
    return named or found


def read_known(path: Path = LIST) -> list[Known]:
    """Read a list. An entry must say what it is about: operators, kinds and a message.

    Args:
        path: a TOML file with an array of tables ``known``, whose keys are the attributes of
            `Known`. By default what this package knows about the oracles.

    Raises:
        ValueError: an unknown key, or a word for feeds that is none.
    """
    entries = tomllib.loads(path.read_text("utf-8"))["known"]
    found = []
    for entry in entries:
        types = set(entry.pop("types", []))
        if "integers" in types:
            types = (types - {"integers"}) | INTEGERS
        found.append(
            Known(
                operators=frozenset(entry.pop("operators")),
                below=entry.pop("below", None),
                types=frozenset(types),
                attributes=entry.pop("attributes", {}),
                feeds=entry.pop("feeds", ""),
                subjects=entry.pop("subjects", ".*"),
                kinds=frozenset(entry.pop("kinds")),
                message=entry.pop("message"),
                reason=entry.pop("reason"),
            )
        )
        if entry:
            raise ValueError(f"{path}: unknown keys {sorted(entry)}")
        if found[-1].feeds not in ("", *AMONG):
            raise ValueError(f"{path}: unknown feeds {found[-1].feeds!r}; use {sorted(AMONG)}")
    return found


def reason_for(case: Case, finding: Finding, entries: Iterable[Known]) -> str | None:
    """Return why a finding is known; None for a new one."""
    return next((entry.reason for entry in entries if entry.matches(case, finding)), None)


@cache
def _of_oracles() -> tuple[Known, ...]:
    return tuple(read_known())


def is_known(case: Case, finding: Finding) -> bool:
    """Report whether a finding is a form that the oracles get wrong or leave open."""
    return reason_for(case, finding, _of_oracles()) is not None
