"""The pass ``infer-shapes``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass import Pass, PassResult
from narrowpass_constant_folding.report import Report
from narrowpass_constant_folding.shapes.derived import derived_types, is_derived
from narrowpass_constant_folding.shapes.graphs import GraphInference, declare
from narrowpass_constant_folding.shapes.types import merge, type_of

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass import Context


@dataclass(frozen=True)
class InferShapes(Pass):
    """Infer types and shapes of values from those of the inputs.

    Shapes follow by ONNX's own inference, operator by operator, and from partly known shape
    values through Shape, Gather, Slice, Concat and arithmetic. Names of dimensions are kept. What
    the model declares is only ever refined: where it contradicts what
    follows, it stays, nothing is inferred from it, and reported. Inputs and outputs of the
    model stay as they are declared. Within functions only what follows from constants is known.
    """

    name: ClassVar[str] = "infer-shapes"

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Infer types and shapes in place.

        Counters: ``inferred`` (values), ``failed`` (nodes that ONNX's inference objects to),
        ``contradictions`` (nodes whose declared and inferred types do not fit).
        """
        report = Report()
        if is_derived(model):
            GraphInference(model, report, {}, outputs=False).infer(model)
        else:
            with derived_types(model, report) as values:
                found = [(value, type_of(value)) for value in values]
            report.counters.pop("inferred", None)
            for value, inferred in found:
                declared = type_of(value)
                merged = merge(declared, inferred).type
                if merged != declared:
                    declare(value, declared, merged)
                    report.count("inferred")
        report.publish(ctx)
        return PassResult(model, bool(report.counters["inferred"]))
