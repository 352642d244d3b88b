"""Random models of ONNX's operators, two oracles that judge them, and a reducer of failing ones.

A backend's author runs them so::

    from narrowpass_testing.random_models import check, random_models

    def test_random_models():
        for case in random_models(seed=0, count=200):
            check(case, backend="mine")

What is drawn is a table of recipes (`RECIPES`), to which others can be added (`Recipes`). onnx's
evaluator and onnxruntime, where it is installed, say what is right (`judge`); `reduce_case` makes
a failing case small.
"""

from __future__ import annotations

from narrowpass_testing.random_models._bits import batched, is_fixed
from narrowpass_testing.random_models._builder import (
    Block,
    Builder,
    Chain,
    Draft,
    Recipes,
    UnfitError,
)
from narrowpass_testing.random_models._cases import Case, Finding
from narrowpass_testing.random_models._checking import (
    Sizes,
    Subject,
    check,
    copies,
    findings,
    run_subject,
)
from narrowpass_testing.random_models._differences import difference, differences, other_bits
from narrowpass_testing.random_models._doubts import ACCUMULATING, EVALUATOR, Doubt, is_doubtful
from narrowpass_testing.random_models._elements import TYPES
from narrowpass_testing.random_models._generating import draw_case, random_case, random_models
from narrowpass_testing.random_models._judging import Verdict, judge, mismatches
from narrowpass_testing.random_models._known import Known, is_known, read_known, reason_for
from narrowpass_testing.random_models._nodes import Operation, operations, part_of
from narrowpass_testing.random_models._oracles import PHASE, run_evaluator, run_onnxruntime
from narrowpass_testing.random_models._reducing import reduce_case
from narrowpass_testing.random_models._rounding import is_rounding
from narrowpass_testing.random_models._traits import DISCONTINUOUS, DRAWN_BY_CHANCE, EXACT
from narrowpass_testing.random_models.recipes import RECIPES, WITHOUT

__all__ = [
    "ACCUMULATING",
    "DISCONTINUOUS",
    "DRAWN_BY_CHANCE",
    "EVALUATOR",
    "EXACT",
    "PHASE",
    "RECIPES",
    "TYPES",
    "WITHOUT",
    "Block",
    "Builder",
    "Case",
    "Chain",
    "Doubt",
    "Draft",
    "Finding",
    "Known",
    "Operation",
    "Recipes",
    "Sizes",
    "Subject",
    "UnfitError",
    "Verdict",
    "batched",
    "check",
    "copies",
    "difference",
    "differences",
    "draw_case",
    "findings",
    "is_doubtful",
    "is_fixed",
    "is_known",
    "is_rounding",
    "judge",
    "mismatches",
    "operations",
    "other_bits",
    "part_of",
    "random_case",
    "random_models",
    "read_known",
    "reason_for",
    "reduce_case",
    "run_evaluator",
    "run_onnxruntime",
    "run_subject",
]
