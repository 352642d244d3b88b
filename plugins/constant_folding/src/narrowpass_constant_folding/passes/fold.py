"""The pass ``fold``: all clean-ups, to a fixed point."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass import FixedPoint, PassResult
from narrowpass_constant_folding.passes.cse import Cse
from narrowpass_constant_folding.passes.dead_code import DeadCode
from narrowpass_constant_folding.passes.dedup_weights import DedupWeights
from narrowpass_constant_folding.passes.drop_casts import DropCasts
from narrowpass_constant_folding.passes.eliminate_identity import EliminateIdentity
from narrowpass_constant_folding.passes.fold_constants import FoldConstants
from narrowpass_constant_folding.passes.fuse_batchnorm import FuseBatchnorm
from narrowpass_constant_folding.passes.fuse_bias import FuseBias
from narrowpass_constant_folding.passes.fuse_pad import FusePad
from narrowpass_constant_folding.passes.infer_shapes import InferShapes
from narrowpass_constant_folding.passes.inline_if import InlineIf
from narrowpass_constant_folding.passes.merge_reshapes import MergeReshapes
from narrowpass_constant_folding.passes.merge_transposes import MergeTransposes
from narrowpass_constant_folding.passes.unpack_sequences import UnpackSequences
from narrowpass_constant_folding.report import Report
from narrowpass_constant_folding.rewrite import warn_unmatched_keep
from narrowpass_constant_folding.shapes.derived import derived_types

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass import Context, Pass


@dataclass(frozen=True)
class Fold(FixedPoint):
    """Fold constants and clean up, until nothing changes any more.

    What the model declares of values between nodes is not believed: rewrites follow from its
    inputs and operators alone. A second run changes nothing. Inputs and outputs keep their names,
    order, types and shapes. Shapes that were inferred on the way are not written into the model, so
    that its file does not grow by them; ``infer-shapes`` after ``fold`` does that.

    Attributes:
        max_growth: bytes by which one node's folding may grow the model; see ``fold-constants``.
        keep: nodes that are neither folded, nor merged, nor removed as without effect: node-name
            globs, or ``op:TYPE``. Such a node is still removed where nothing uses it.
    """

    name: ClassVar[str] = "fold"

    max_growth: int = FoldConstants.max_growth
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: a negative `max_growth`.
        """
        super().__post_init__()
        self.parts()

    def parts(self) -> tuple[Pass, ...]:
        """Return the passes that `fold` runs, in order."""
        keep = self.keep
        return (
            InferShapes(),
            # Early: dead code no longer counts as a reader of what a fold would free.
            DeadCode(),
            InlineIf(keep),
            UnpackSequences(keep),
            EliminateIdentity(keep),
            DropCasts(keep),
            FoldConstants(keep, self.max_growth),
            FusePad(keep),
            FuseBatchnorm(keep),
            FuseBias(keep),
            MergeTransposes(keep),
            MergeReshapes(keep),
            Cse(keep),
            DedupWeights(),
        )

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Fold and clean up `model` in place."""
        warn_unmatched_keep(self.name, self.keep, model, ctx)
        report = Report()
        with derived_types(model, report):
            model, changed = self.run_parts(model, ctx)
        # Nodes at fault are those that infer-shapes, one of the parts, leaves.
        contradicting = {n: r for n, r in report.left.items() if r.rule == "declared"}
        Report(left=contradicting).publish(ctx)
        ctx.counters.pop("inferred", None)
        return PassResult(model, bool(changed - {"infer-shapes"}))
