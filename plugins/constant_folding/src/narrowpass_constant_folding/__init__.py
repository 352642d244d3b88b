"""Constant folding and graph clean-up: the pass ``fold`` and its parts.

This is the plugin's entry module. It imports neither onnx nor numpy; what does the work is
imported when the hook is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    from narrowpass import Pass

__all__ = ["narrowpass_passes"]


@hookimpl
def narrowpass_passes() -> list[type[Pass]]:
    """Register the passes of this distribution."""
    from narrowpass_constant_folding.passes.cse import Cse
    from narrowpass_constant_folding.passes.dead_code import DeadCode
    from narrowpass_constant_folding.passes.dedup_weights import DedupWeights
    from narrowpass_constant_folding.passes.drop_casts import DropCasts
    from narrowpass_constant_folding.passes.eliminate_identity import EliminateIdentity
    from narrowpass_constant_folding.passes.expand_operators import ExpandOperators
    from narrowpass_constant_folding.passes.fold import Fold
    from narrowpass_constant_folding.passes.fold_constants import FoldConstants
    from narrowpass_constant_folding.passes.freeze_weights import FreezeWeights
    from narrowpass_constant_folding.passes.fuse_batchnorm import FuseBatchnorm
    from narrowpass_constant_folding.passes.fuse_bias import FuseBias
    from narrowpass_constant_folding.passes.fuse_pad import FusePad
    from narrowpass_constant_folding.passes.infer_shapes import InferShapes
    from narrowpass_constant_folding.passes.inline_if import InlineIf
    from narrowpass_constant_folding.passes.merge_reshapes import MergeReshapes
    from narrowpass_constant_folding.passes.merge_transposes import MergeTransposes
    from narrowpass_constant_folding.passes.unpack_sequences import UnpackSequences
    from narrowpass_constant_folding.passes.upgrade_opset import UpgradeOpset

    return [
        Fold,
        InferShapes,
        DeadCode,
        InlineIf,
        UnpackSequences,
        EliminateIdentity,
        DropCasts,
        FoldConstants,
        FusePad,
        FuseBatchnorm,
        FuseBias,
        MergeTransposes,
        MergeReshapes,
        Cse,
        DedupWeights,
        UpgradeOpset,
        ExpandOperators,
        FreezeWeights,
    ]
