"""The page on operators of transformers names those that are expanded, and no others."""

from __future__ import annotations

import re
from pathlib import Path

from narrowpass_expansion import OPERATORS, OPSET

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "fast-path" / "operators.md"


def test_the_table_has_each_operator():
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("| operator | domain |")[2].partition("\n\n")[0]
    found = set()
    for line in table.splitlines()[2:]:
        _, names, domain, *_ = line.split("|")
        home = next((x for x in ("com.microsoft", "ai.onnx.ml") if x in domain), "")
        found |= {(home, name) for name in re.findall(r"`(\w+)`", names)}
    assert found == set(OPERATORS)


def test_the_operator_set_is_named():
    text = " ".join(PAGE.read_text(encoding="utf-8").split())
    assert f"others of ONNX's operator set {OPSET}" in text
