"""What runs single nodes that neither a backend nor numpy has a kernel of, in place of Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol, TypeAlias, runtime_checkable

import onnx_ir as ir

from narrowpass.errors import UsageError
from narrowpass.framework.plugins import installed_plugins
from narrowpass_ir.arguments import suggest

REFERENCE = "reference"
"""The Python evaluator, which runs each node that is left."""

AUTO = "auto"
"""An available backend that evaluates nodes; `REFERENCE` without one."""


class Evaluator(Protocol):
    """Runs one node, several threads at once if need be.

    Attributes:
        kernel: what it is, for `explain`.
        inputs: names of the values that the node reads; initializers are bound, and not among them.
    """

    kernel: str
    inputs: tuple[str, ...]

    def run(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the outputs of the node, by name.

        Args:
            values: arrays by name: all of `inputs`. Other names are ignored.

        Raises:
            BackendError: the node fails; the message names it.
        """


Evaluate: TypeAlias = Callable[[ir.Node, ir.Model], Evaluator | None]
"""Returns the evaluator of a node of a model, which has operator sets; None to leave it."""


@runtime_checkable
class EvaluatesNodes(Protocol):
    """A backend that runs single nodes for others."""

    def evaluator(self, node: ir.Node, model: ir.Model, threads: int) -> Evaluator | None:
        """Return what runs a node; None for one whose results may differ from `REFERENCE`'s.

        Args:
            node: with the types of its values, as far as they are known.
            model: has the operator sets and functions.
            threads: that a run may use.
        """


class _Able(EvaluatesNodes, Protocol):
    """A backend that does."""

    priority: ClassVar[int]

    def available(self) -> str | None: ...


def evaluate_by(name: str, threads: int) -> Evaluate | None:
    """Return what runs nodes that are left, by the name of a backend; None for `REFERENCE`.

    Args:
        name: `REFERENCE`, `AUTO` or the name of a backend.
        threads: that a run may use.

    Raises:
        UsageError: no such backend is installed, it cannot run here, or runs no single nodes.
    """
    if name == REFERENCE:
        return None
    backends = installed_plugins().registry.backends
    able = {key: each for key, each in backends.items() if isinstance(each, EvaluatesNodes)}
    if name == AUTO:
        return _first(list(able.values()), threads)
    if name not in able:
        known = (AUTO, REFERENCE, *sorted(able))
        raise UsageError(
            f"fallback: no backend {name!r} that runs single nodes is installed"
            f"{suggest(name, known)}; pass one of {', '.join(known)}"
        )
    found = able[name]
    if reason := found.available():
        raise UsageError(f"fallback: {name} cannot run here: {reason}")
    return lambda node, model: found.evaluator(node, model, threads)


def _first(backends: Sequence[_Able], threads: int) -> Evaluate | None:
    """Return what asks the available backend of highest priority."""
    if not backends:
        return None

    def evaluate(node: ir.Node, model: ir.Model) -> Evaluator | None:
        # Only here: asking whether a backend is available may import its runtime.
        ready = [each for each in backends if each.available() is None]
        found = max(ready, key=lambda each: each.priority, default=None)
        return None if found is None else found.evaluator(node, model, threads)

    return evaluate
