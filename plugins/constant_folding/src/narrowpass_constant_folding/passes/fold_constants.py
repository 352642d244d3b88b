"""The pass ``fold-constants``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass_constant_folding.evaluation.evaluator import BackendEvaluation
from narrowpass_constant_folding.folding.attempt import Folder
from narrowpass_constant_folding.folding.rules import Rules
from narrowpass_constant_folding.folding.sizes import SizeRule
from narrowpass_constant_folding.folding.sweep import fold_constants
from narrowpass_constant_folding.rewrite import Rewrite

if TYPE_CHECKING:
    from narrowpass_constant_folding.rewrite import Work


@dataclass(frozen=True)
class FoldConstants(Rewrite):
    """Replace constant expressions by their values.

    Also those whose result depends on no more than the type or the shape of what they read. A
    folded value keeps its name. Initializers that are also graph inputs are no constants, since a
    caller may override them. What is random, what would increase the model's size, and the
    quantization of constants stays.

    What the reference evaluator would take long for is computed by the target, where that is
    another backend and supports the node.

    In graphs, results become initializers. Where a scope has no initializers of its own (the
    bodies of model-local functions, and every graph of a model below IR version 4, whose
    initializers would have to be inputs), they become ``Constant`` nodes.

    Attributes:
        max_growth: bytes by which one node's folding may grow the model: a node is folded when
            its outputs take at most as many bytes as the constants that it alone reads, plus
            this. An operator that only repeats values (such as ConstantOfShape, Expand) has an
            eighth of it.
    """

    name: ClassVar[str] = "fold-constants"

    max_growth: int = 1024

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            ValueError: a negative `max_growth`.
        """
        super().__post_init__()
        if self.max_growth < 0:
            raise ValueError(f"max-growth must be 0 or more, not {self.max_growth}")

    def apply(self, work: Work) -> None:
        """Fold what can be folded.

        Counters: ``folded``, ``constants`` (Constant nodes turned into initializers), ``failed``,
        ``too-large``.
        """
        rules = Rules(work.model, work.kept)
        native = BackendEvaluation.of(work.ctx)
        folder = Folder(work.model, SizeRule(self.max_growth), rules, native)
        work.changed |= fold_constants(work.model, folder, work.kept, work.report)
