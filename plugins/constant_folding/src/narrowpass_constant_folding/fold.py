"""The pass ``fold``: its options and its contract."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass import Context, Pass, PassResult

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class Fold(Pass):
    """Replace constant expressions by their values; remove identities and dead code.

    Runs to a fixed point: a second run changes nothing. Inputs and outputs keep their names,
    order, types and shapes. A folded value keeps its name. Initializers that are also graph
    inputs are no constants, since a caller may override them.

    In graphs, results become initializers. Where a scope has no initializers of its own (the
    bodies of model-local functions, and every graph of a model below IR version 4, whose
    initializers would have to be inputs), they become ``Constant`` nodes.

    Attributes:
        max_growth: bytes by which one node's folding may grow the model: a node is folded when
            its outputs take at most as many bytes as the constants that it alone reads, plus
            this. An operator that only repeats values (such as ConstantOfShape, Expand) has an
            eighth of it.
        keep: nodes that are neither folded nor removed as identities: node-name globs, or
            ``op:TYPE``. Such a node is still removed where nothing uses it.
    """

    name: ClassVar[str] = "fold"

    max_growth: int = 1024
    keep: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: a negative `max_growth`.
        """
        if self.max_growth < 0:
            raise ValueError(f"max-growth must be 0 or more, not {self.max_growth}")

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Fold and clean up `model` in place.

        Counters: ``folded``, ``constants`` (Constant nodes made initializers), ``identities``,
        ``dead-nodes``, ``dead-initializers``, ``dead-functions``, ``failed``, ``too-large``.
        """
        from narrowpass_constant_folding import _driver

        return PassResult(model, _driver.simplify(model, self, ctx))
