"""How far a rewritten model is from what it was on data, and which nodes are to blame.

For passes that make models narrow.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.backend import CompileOptions
from narrowpass.bundle import Bundle
from narrowpass.errors import PassError
from narrowpass.metrics import Tolerance, difference
from narrowpass.reference import ReferenceBackend

if TYPE_CHECKING:
    from narrowpass.backend import Backend
    from narrowpass.calibration import Samples

AT_ONCE = 256
"""Values that are kept in one run: more of them would fill the memory."""

MOST = 64
"""How many nodes are made wide before the pass gives up."""

Rewrite = Callable[[frozenset[int]], ir.Model]
"""Gives the model rewritten, with the nodes of these numbers kept wide."""


class Verification:
    """Compares rewritten models with the model as it was.

    Args:
        model: as it was; not changed.
        samples: what it is run on.
        tolerance: how far its outputs may be from those of the model as it was.
        backend: what runs the models; None for onnx's own evaluator, which computes narrow nodes
            as the standard says. Other runtimes compute them in float32, and hide what overflows.
    """

    def __init__(
        self,
        model: ir.Model,
        samples: Samples,
        tolerance: Tolerance,
        backend: Backend | None = None,
    ) -> None:
        self._model, self._samples, self._tolerance = model, samples, tolerance
        self._backend = ReferenceBackend() if backend is None else backend
        self._right = self._run(model)

    def problem(self, model: ir.Model) -> str:
        """Give a sentence on an output that is too far from the model as it was; empty for none."""
        for number, (got, right) in enumerate(zip(self._run(model), self._right, strict=True), 1):
            differences = {name: difference(got[name], array) for name, array in right.items()}
            for text in self._tolerance.check(differences):
                return f"on sample {number} of {self._samples.source}, {text}"
        return ""

    def blame(self, rewrite: Rewrite, nodes: Sequence[int]) -> frozenset[int]:
        """Find nodes that must stay wide for the outputs to be within the tolerance.

        The first node in order whose lowering takes them out of it is found by bisection, with all
        nodes after it wide, and is kept wide; then the next.

        Args:
            rewrite: makes the narrow model.
            nodes: the numbers of the nodes that are narrow, in order.

        Raises:
            PassError: too many nodes would have to be wide.
        """
        wide: set[int] = set()
        start = 0
        while problem := self.problem(rewrite(frozenset(wide))):
            if len(wide) == MOST or start >= len(nodes):
                raise PassError(
                    f"tolerance={self._tolerance} cannot be met with {len(wide)} nodes kept wide: "
                    f"{problem}; choose a larger one, or bfloat16, or name nodes in red"
                )
            # With nodes[:low] narrow it is met, with nodes[:high] it is not.
            low, high = start, len(nodes)
            while high - low > 1:
                middle = (low + high) // 2
                if self.problem(rewrite(frozenset(wide | set(nodes[middle:])))):
                    high = middle
                else:
                    low = middle
            wide.add(nodes[low])
            start = low + 1
        return frozenset(wide)

    def sensitivity(self, model: ir.Model) -> float:
        """Give the least signal-to-noise ratio of a model's outputs, in dB; infinite if equal."""
        least = np.inf
        for got, right in zip(self._run(model), self._right, strict=True):
            for name, array in right.items():
                least = min(least, difference(got[name], array).sqnr)
        return float(least)

    def fewest(self, rewrite: Rewrite, nodes: Sequence[int]) -> frozenset[int]:
        """Find how many nodes, the first of these, must stay wide for the tolerance to be met.

        Args:
            rewrite: makes the narrow model.
            nodes: the numbers of the nodes that are narrow, those that harm most first.

        Raises:
            PassError: it is not met with all of them wide.
        """
        if not self.problem(rewrite(frozenset())):
            return frozenset()
        # With nodes[:low] wide it is not met, with nodes[:high] it is.
        low, high = 0, len(nodes)
        if problem := self.problem(rewrite(frozenset(nodes))):
            raise PassError(f"tolerance={self._tolerance} cannot be met: {problem}")
        while high - low > 1:
            middle = (low + high) // 2
            if self.problem(rewrite(frozenset(nodes[:middle]))):
                low = middle
            else:
                high = middle
        return frozenset(nodes[:high])

    def errors(self, model: ir.Model, names: Sequence[str]) -> dict[str, float]:
        """Give how far values are from those of the same names in the model as it was.

        Args:
            model: rewritten.
            names: of values between nodes; those that one of the models lacks are left out.

        Returns:
            The largest difference over the largest magnitude, of all samples; by name.
        """
        known = [{v.name for n in m.graph for v in n.outputs} for m in (self._model, model)]
        common = [name for name in names if all(name in each for each in known)]
        found: dict[str, float] = {}
        for start in range(0, len(common), AT_ONCE):
            chosen = tuple(common[start : start + AT_ONCE])
            pairs = zip(self._run(self._model, chosen), self._run(model, chosen), strict=True)
            for right, got in pairs:
                for name in chosen:
                    error = _relative(got[name], right[name])
                    if error is not None:
                        found[name] = max(found.get(name, 0.0), error)
        return found

    def _run(self, model: ir.Model, names: tuple[str, ...] = ()) -> list[dict[str, Any]]:
        """Run a model on all samples; give the values of these names, or its outputs."""
        bundle = Bundle({"main": model})
        outputs = {value.name for value in model.graph.outputs}
        keep = tuple(name for name in names if name not in outputs)
        compiled = self._backend.compile(bundle, CompileOptions(keep=keep, cache=False))
        with np.errstate(all="ignore"), compiled as program:
            return [dict(program.run(feeds, outputs=names or None)) for feeds in self._samples]


def _relative(got: Any, right: Any) -> float | None:
    """Give the largest difference over the largest magnitude; None for what is no float."""
    if not isinstance(right, np.ndarray) or right.dtype != np.float32 or not right.size:
        return None
    with np.errstate(all="ignore"):
        wide = np.asarray(got, np.float64)
        same = (wide == right) | (np.isnan(wide) & np.isnan(right))
        gap = np.where(same, 0.0, np.abs(wide - right))
        finite = np.abs(right[np.isfinite(right)])
        largest = float(finite.max()) if finite.size else 0.0
    worst = float(gap.max())
    return worst / largest if largest else worst
