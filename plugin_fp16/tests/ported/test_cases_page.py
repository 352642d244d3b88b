"""The page of cases from other tools, against the tests that stand for them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import test_relax_cases
import test_relay_cases
import test_tensorflow_cases
import test_tensorflow_list_cases

MODULES = (test_relay_cases, test_relax_cases, test_tensorflow_cases, test_tensorflow_list_cases)
PAGE = Path(__file__).parents[3] / "docs" / "explanation" / "mixed-precision-cases.md"


def test_the_page_names_each_test_and_each_original_once():
    """The tables of the documentation and these modules have the same tests."""
    if not PAGE.is_file():
        pytest.skip("the documentation is not there: these tests are run from a source archive")
    rows = re.findall(
        r"^\| `(\w+(?:\.\w+)?)` \| `([\w\[\]]+)` \| .+ \|$", PAGE.read_text("utf-8"), re.MULTILINE
    )
    here = {
        name
        for module in MODULES
        for name in vars(module)
        if re.match(r"test_(relay|relax|tensorflow)_", name)
    }
    here -= {"test_tensorflow_unary"}
    here |= {f"test_tensorflow_unary[{case}]" for case in test_tensorflow_cases.UNARY}
    named = [test for _, test in rows]
    assert sorted(named) == sorted(here)
    by_project = [
        len({original for original, test in rows if test.startswith(f"test_{project}_")})
        for project in ("relay", "relax", "tensorflow")
    ]
    assert by_project == [18, 15, 38]
