"""How far a rewritten model is from what it was on data, and which nodes are to blame.

For passes that make models narrow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass.errors import BackendError, PassError
from narrowpass.runtime.oracle import oracle
from narrowpass_analysis.metrics import Tolerance, difference
from narrowpass_analysis.values import check_numbers, run_on_samples, split_groups

if TYPE_CHECKING:
    from narrowpass.calibration.samples import Samples
    from narrowpass.runtime.backend import Backend

FEW = 4
"""How many nodes are found one by one."""

Rewrite = Callable[[frozenset[int]], ir.Model]
"""Returns the model rewritten, with the nodes of these numbers kept wide."""


class Verification:
    """Compares rewritten models with the model as it was, on several backends.

    Args:
        model: as it was; not changed.
        samples: what it is run on.
        tolerance: how far its outputs may be from those of the model as it was.
        backends: what runs the models, and each has to find them near enough. The reference
            evaluator computes narrow nodes as the standard says; other runtimes compute them in
            float32 and hide what overflows, but round elsewhere. One that cannot run the model is
            left out, with a warning.
        log: for warnings, and notes of what takes long.

    Raises:
        BackendError: none of the backends runs the model.
        DataError: a sample does not fit the model, has no elements, or is NaN.
    """

    def __init__(
        self,
        model: ir.Model,
        samples: Samples,
        tolerance: Tolerance,
        backends: Sequence[Backend],
        log: logging.Logger,
    ) -> None:
        self._model, self._samples, self._tolerance = model, samples, tolerance
        self._log = log
        self._right: list[tuple[Backend, list[dict[str, Any]]]] = []
        failure: Exception | None = None
        for backend in backends:
            try:
                self._right.append((backend, self._run(backend, model, check=True)))
            except (BackendError, MemoryError) as error:
                log.warning("%s cannot judge the result: %s", backend.name, error)
                failure = error
        if failure is not None and not self._right:
            raise failure
        self._runs = 0

    def problem(self, model: ir.Model) -> str:
        """Return a sentence on an output that is too far from the original model; else ''."""
        self._runs += 1
        self._log.info("verification: run %d", self._runs)
        for backend, wanted in self._right:
            found = zip(self._run(backend, model), wanted, strict=True)
            for number, (got, right) in enumerate(found, 1):
                differences = {name: difference(got[name], array) for name, array in right.items()}
                for text in self._tolerance.check(differences):
                    where = f"on sample {number} of {self._samples.source}, on {backend.name}"
                    return f"{where}, {text}"
        return ""

    def blame(
        self,
        rewrite: Rewrite,
        nodes: Sequence[int],
        harm: Callable[[], Sequence[int]],
    ) -> frozenset[int]:
        """Find nodes that must stay wide for the outputs to be within the tolerance.

        The first node in order whose lowering takes them out of it is found by bisection, with all
        nodes after it wide, and is kept wide; then the next. Where it is not a few nodes, as many
        of those that harm most as it takes are kept wide.

        Args:
            rewrite: builds the narrow model.
            nodes: the numbers of the nodes that are narrow, in order.
            harm: returns them with the most harmful first; called if it is needed.

        Raises:
            PassError: the tolerance cannot be met.
        """
        wide: set[int] = set()
        start = 0
        while self.problem(rewrite(frozenset(wide))):
            if len(wide) == FEW or start >= len(nodes):
                return self.fewest(rewrite, harm())
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
        """Return the least signal-to-noise ratio of a model's outputs, in dB; infinite if equal."""
        least = np.inf
        backend, wanted = self._right[-1]
        for got, right in zip(self._run(backend, model), wanted, strict=True):
            for name, array in right.items():
                least = min(least, difference(got[name], array).sqnr)
        return float(least)

    def fewest(self, rewrite: Rewrite, nodes: Sequence[int]) -> frozenset[int]:
        """Find how many nodes, the first of these, must stay wide for the tolerance to be met.

        Args:
            rewrite: builds the narrow model.
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
        """Return how far values are from those of the same names in the model as it was.

        Args:
            model: rewritten.
            names: of values between nodes; those that one of the models lacks are left out.

        Returns:
            The largest difference over the largest magnitude, of all samples; by name.
        """
        known = [{v.name for n in m.graph for v in n.outputs} for m in (self._model, model)]
        common = [name for name in names if all(name in each for each in known)]
        found: dict[str, float] = {}
        for chosen in split_groups(common):
            backend, _ = self._right[0]
            pairs = zip(
                self._run(backend, self._model, chosen),
                self._run(backend, model, chosen),
                strict=True,
            )
            for right, got in pairs:
                for name in chosen:
                    error = _relative(got[name], right[name])
                    if error is not None:
                        found[name] = max(found.get(name, 0.0), error)
        return found

    def _run(
        self, backend: Backend, model: ir.Model, names: Sequence[str] = (), *, check: bool = False
    ) -> list[dict[str, Any]]:
        """Run a model on all samples; yield the values of these names, or its outputs."""
        found = []
        with np.errstate(all="ignore"):
            for number, feeds, values in run_on_samples(model, names, self._samples, backend):
                if check:
                    check_numbers(feeds, f"sample {number} of {self._samples.source}")
                found.append(dict(values))
        return found


def judging_backends(target: Backend | None) -> list[Backend]:
    """Return the backends that judge a rewrite: the oracle, and the target.

    Raises:
        PluginError: no oracle is installed.
    """
    found = [oracle()]
    if target is not None and target.name != found[0].name and target.available() is None:
        found.append(target)
    return found


def _relative(got: Any, right: Any) -> float | None:
    """Return the largest difference over the largest magnitude; None for what is no float."""
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
