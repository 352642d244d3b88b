"""What a pass decided, as the bundle keeps it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from narrowpass_ir.data.documents import parse_json


@dataclass(frozen=True)
class MethodReport:
    """What one pass decided and counted in one method.

    Attributes:
        decisions: one JSON object a node or value, as in `narrowpass.Decision.to_json`.
        counters: counts by name.
        exhibits: plots and tables; see `narrowpass.Context.exhibits`.
    """

    decisions: Sequence[Mapping[str, Any]] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    exhibits: Sequence[Mapping[str, Any]] = ()


@dataclass(frozen=True)
class Report:
    """What one pass of the pipeline decided and counted; ``reports/NN-pass.json``.

    Attributes:
        text: the pass in pipeline text, with its options.
        methods: what it did in each method, by the method's name.
    """

    text: str
    methods: Mapping[str, MethodReport] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The pass's name, without its options."""
        return self.text.partition("{")[0]

    def to_json(self) -> str:
        """Return the text of the file, the same for the same report."""
        methods = ",\n".join(
            f"{_text(name)}: {_of_method(part)}" for name, part in sorted(self.methods.items())
        )
        return f'{{"methods": {{\n{methods}\n}},\n"pass": {_text(self.text)}}}\n'

    @classmethod
    def from_json(cls, data: bytes) -> Report:
        """Read such a file.

        Raises:
            ValueError: it is not one.
        """
        try:
            raw = parse_json(data, infinite=True)
            methods = {
                name: MethodReport(
                    tuple(part["decisions"]),
                    dict(part["counters"]),
                    tuple(part.get("exhibits", ())),
                )
                for name, part in raw["methods"].items()
            }
            return cls(str(raw["pass"]), methods)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a report: {error}") from error


def _of_method(part: MethodReport) -> str:
    """Return the text of a part, with a decision in each line."""
    decisions = ",\n".join(_text(dict(decision)) for decision in part.decisions)
    shown = f', "exhibits": {_text(list(map(dict, part.exhibits)))}' if part.exhibits else ""
    return f'{{"counters": {_text(dict(part.counters))}, "decisions": [\n{decisions}\n]{shown}}}'


def _text(fields: object) -> str:
    return json.dumps(fields, sort_keys=True, ensure_ascii=False)
