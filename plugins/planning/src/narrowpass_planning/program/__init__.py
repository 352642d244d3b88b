"""Programs: methods compiled by a backend's lowering, and their execution."""

from narrowpass_planning.host.evaluators import EvaluatesNodes, Evaluator, evaluate_by
from narrowpass_planning.program.builder import SlotBuilder
from narrowpass_planning.program.lowering import Lowering, Source, StepMeter
from narrowpass_planning.program.program import PlannedProgram
from narrowpass_planning.program.support import (
    ListsFallbacks,
    NativeClassifier,
    fallbacks,
    supports,
)

__all__ = [
    "EvaluatesNodes",
    "Evaluator",
    "ListsFallbacks",
    "Lowering",
    "NativeClassifier",
    "PlannedProgram",
    "SlotBuilder",
    "Source",
    "StepMeter",
    "evaluate_by",
    "fallbacks",
    "supports",
]
