"""Candidates: ways to make single nodes narrow, among which a pass chooses for each node.

This module imports neither onnx nor numpy, so that a plugin's entry module may import it.
"""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from collections.abc import Collection

    import onnx_ir as ir

    from narrowpass.framework.classify import Target
    from narrowpass.framework.context import Context
    from narrowpass.runtime.backend import Backend


class Candidate(abc.ABC):
    """One way to make nodes narrow, such as int8 weights with rows quantized at run time.

    A pass that chooses types tries it: it measures what single nodes take and lose when they are
    rewritten so, and then rewrites those for which it is the best.

    Attributes:
        name: what ``allow=[NAME, ...]`` of such a pass says, in lower case with hyphens.
        rank: candidates of lower rank rewrite a model before those of higher rank, which see
            nodes that are narrow already.
        needs_data: whether `rewrite` needs `Context.samples`.
    """

    name: ClassVar[str]
    rank: ClassVar[int] = 50
    needs_data: ClassVar[bool] = False

    @abc.abstractmethod
    def rewrite(self, model: ir.Model, nodes: Collection[str], ctx: Context) -> ir.Model:
        """Make nodes narrow, and leave all others as they are.

        Args:
            model: a valid model, in which each node has a name of its own. It may be changed.
            nodes: names of the nodes that may be narrow. One that cannot be stays as it is, with
                a `Decision` in `Context.decisions` that says why.
            ctx: as for `Pass.run`.

        Returns:
            The model, or a new one.

        Raises:
            PassError: the rewrite is not possible on this model.
        """

    def gain(self, node: ir.Node, target: Target) -> float:
        """Estimate the seconds that a node saves in a run, where nothing can be measured.

        Args:
            node: in its float32 form, with types and shapes as far as they are known.
            target: what the model is built for; `Backend.gain` may know.
        """
        return 0.0

    def reject_reason(self, target: Backend | None) -> str:
        """Return why the candidate is of no use on a target; empty where it is of use.

        Args:
            target: what the model is built for.
        """
        return ""
