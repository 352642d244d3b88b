"""Findings that are understood and not repaired here, each with its reason."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

from differential.cases import Case
from differential.subjects import Finding

LIST = Path(__file__).parents[1] / "known.toml"


@dataclass(frozen=True)
class Known:
    """An entry of the list.

    Attributes:
        operators: a case must have one of them; none for any case.
        subjects: a pattern that the subject's name must match.
        kinds: kinds of findings.
        message: a pattern that must be found in the message.
        reason: why it is so.
    """

    operators: frozenset[str]
    subjects: str
    kinds: frozenset[str]
    message: str
    reason: str

    def matches(self, case: Case, finding: Finding) -> bool:
        """Report whether a finding is what the entry is about."""
        kinds = set(operators_of(case))
        return (
            (not self.operators or bool(self.operators & kinds))
            and re.fullmatch(self.subjects, finding.subject) is not None
            and (not self.kinds or finding.kind in self.kinds)
            and re.search(self.message, finding.message) is not None
        )


def operators_of(case: Case) -> list[str]:
    """Return the operators of a case, those in bodies included."""
    found: list[str] = []
    stack = [case.model.graph]
    while stack:
        for node in stack.pop().node:
            found.append(node.op_type)
            stack += [attribute.g for attribute in node.attribute if attribute.HasField("g")]
    return found


def known_findings() -> list[Known]:
    """Read the list."""
    entries = tomllib.loads(LIST.read_text("utf-8")).get("known", [])
    return [
        Known(
            frozenset(entry.get("operators", [])),
            entry.get("subjects", ".*"),
            frozenset(entry.get("kinds", [])),
            entry.get("message", ""),
            entry["reason"],
        )
        for entry in entries
    ]


def reason_for(case: Case, finding: Finding, entries: list[Known]) -> str | None:
    """Return why a finding is known; None for a new one."""
    return next((entry.reason for entry in entries if entry.matches(case, finding)), None)
