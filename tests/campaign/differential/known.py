"""Findings that are understood: about the oracles, and about the backends of this repository."""

from __future__ import annotations

from pathlib import Path

from narrowpass_testing.random_models import Case, Known, operations, read_known

LIST = Path(__file__).parents[1] / "known.toml"


def known_findings() -> list[Known]:
    """Read both lists."""
    return [*read_known(LIST), *read_known()]


def operators_of(case: Case) -> list[str]:
    """Return the operators of a case, those in bodies included."""
    return [found.node.op_type for found in operations(case.model)]
