"""The pass ``freeze-weights``."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, ClassVar

import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult

if TYPE_CHECKING:
    from narrowpass import Context

_FIRST_IR = 4
"""The IR version from which initializers need not be inputs."""


@dataclass(frozen=True)
class FreezeWeights(Pass):
    """Turn weights that are also inputs of the model, as in old ONNX files, into constants.

    Such an input is optional: who runs the model may feed another tensor. As long as that may be,
    no pass can fold the weight, or store it in another type. Models of IR version 3 had to list all
    of their weights this way; the version becomes 4, the first that needs not.

    Attributes:
        keep: weights that stay inputs: globs of names.
    """

    name: ClassVar[str] = "freeze-weights"
    keep: tuple[str, ...] = ()

    @property
    def may_change_signature(self) -> bool:
        """Inputs go."""
        return True

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Take initializers off the inputs of the main graph.

        Counters: ``frozen``.
        """
        given = [value.name or "" for value in model.graph.inputs]
        for item in self.keep:
            if not any(fnmatchcase(name, item) for name in given):
                ctx.observer.log.warning("freeze-weights: keep item %r selects no input", item)
        frozen = [
            value
            for value in model.graph.inputs
            if value.is_initializer()
            and not any(fnmatchcase(value.name or "", item) for item in self.keep)
        ]
        if not frozen:
            return PassResult(model, False)
        for value in frozen:
            model.graph.inputs.remove(value)
            ctx.decisions.append(
                Decision(value.name or "", "", "frozen", "rule", "nobody may feed it any more")
            )
        ctx.counters["frozen"] = len(frozen)
        if model.ir_version is not None:
            model.ir_version = max(model.ir_version, _FIRST_IR)
        return PassResult(model, True)
