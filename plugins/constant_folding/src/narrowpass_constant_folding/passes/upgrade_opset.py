"""The pass ``upgrade-opset``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult
from narrowpass.errors import PassError, UpgradeError
from narrowpass_ir.upgrading import upgrade

if TYPE_CHECKING:
    from narrowpass import Context


@dataclass(frozen=True)
class UpgradeOpset(Pass):
    """Upgrade the model to a newer opset, by onnx's version converter.

    Newer sets have bfloat16 for more operators, and Q/DQ for channels. The model keeps its weights,
    which the converter never sees, its names and its metadata.

    Attributes:
        to: the version; a model of that or a newer one stays as it is.
    """

    name: ClassVar[str] = "upgrade-opset"
    to: int = 22

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Return a new model of the version.

        Counters: ``nodes`` (that have another version's definition or are new).

        Raises:
            PassError: a version that this onnx does not know; a model with functions, which the
                converter would drop; an operator that it cannot convert.
        """
        try:
            upgraded, changed = upgrade(model, self.to)
        except UpgradeError as error:
            raise PassError(str(error)) from error
        if upgraded is model:
            return PassResult(model, False)
        ctx.counters["nodes"] = len(changed)
        ctx.decisions.extend(
            Decision(node.name or "", node.op_type, "upgraded", self.name) for node in changed
        )
        return PassResult(upgraded, True)
