"""The choice as an integer program: a candidate for each region, within a budget of noise.

Variables are 1 where a region takes a candidate (0 stands for its float32 form, which is always
one). A unit that takes a candidate with conversions pays for them, unless all its neighbours on
that side take the same candidate: two more variables for such a unit say so. SciPy's HiGHS solves
it (Huangfu and Hall, *Parallelizing the dual revised simplex method*, 2018); what it prints is kept
out of our standard output, which may be a JSON document.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from narrowpass.errors import PassError

if TYPE_CHECKING:
    from scipy.optimize import LinearConstraint


KEEP = ""
"""The candidate that leaves a region as it is."""

_SECONDS = 20.0
_GAP = 1e-6
_TIES = 1e-4
"""What noise as large as the budget costs, as a share of the largest cost: of choices that cost the
same, the one of least noise is best."""

_LARGEST = 1e300


@dataclass(frozen=True)
class Cost:
    """What a candidate costs in a unit or a region.

    Attributes:
        seconds: of a run, conversions included.
        entering: seconds of that for conversions of operands.
        leaving: the same for results.
        bytes: of constants.
        noise: that it adds to the model's outputs, over their power, on each of some samples.
    """

    seconds: float
    entering: float
    leaving: float
    bytes: float
    noise: tuple[float, ...]


@dataclass(frozen=True)
class Link:
    """A unit whose conversions on one side are spared where its neighbours convert, too.

    Attributes:
        region: the region of the unit.
        neighbours: the regions next to it on that side.
        seconds: what is spared, by candidate.
    """

    region: int
    neighbours: frozenset[int]
    seconds: Mapping[str, float]


@dataclass(frozen=True)
class Weights:
    """What is minimized: seconds and bytes, each times its weight.

    Attributes:
        seconds: weight of a second.
        bytes: weight of a byte.
    """

    seconds: float
    bytes: float


Choice = tuple[str, ...]
"""The name of a candidate for each region; `KEEP` for none."""


@dataclass(frozen=True)
class Problem:
    """Regions with the costs of their candidates.

    Attributes:
        costs: of each region, by candidate; each has `KEEP`, whose noise is 0.
        links: between regions.
    """

    costs: Sequence[Mapping[str, Cost]]
    links: Sequence[Link] = ()

    def total(self, choice: Choice) -> Cost:
        """Return the costs of a choice; `Cost.seconds` is without the conversions spared."""
        chosen = [costs[name] for costs, name in zip(self.costs, choice, strict=True)]
        spared = sum(
            link.seconds.get(choice[link.region], 0.0)
            for link in self.links
            if all(choice[other] == choice[link.region] for other in link.neighbours)
        )
        return Cost(
            sum(cost.seconds for cost in chosen) - spared,
            0.0,
            0.0,
            sum(cost.bytes for cost in chosen),
            tuple(map(sum, zip(*(cost.noise for cost in chosen), strict=True))),
        )

    def value(self, choice: Choice, weights: Weights) -> float:
        """Return what `solve` minimizes."""
        cost = self.total(choice)
        return weights.seconds * cost.seconds + weights.bytes * cost.bytes

    def keep(self) -> Choice:
        """Return the choice that changes nothing."""
        return (KEEP,) * len(self.costs)

    def solve(self, weights: Weights, budget: float, *, slowest: float | None = None) -> Choice:
        """Return the choice of least cost within a budget.

        Args:
            weights: what is minimized.
            budget: the most noise of all regions together on any sample; infinite for any.
            slowest: the most seconds; None for any number.

        Raises:
            PassError: the solver found none.
        """
        rows = _Rows()
        variables: list[tuple[int, str]] = []
        objective: list[float] = []
        first: list[dict[str, int]] = []
        for region, costs in enumerate(self.costs):
            first.append({})
            for name, cost in costs.items():
                if max(cost.noise, default=0.0) > min(budget, _LARGEST):
                    continue
                first[region][name] = len(objective)
                variables.append((region, name))
                objective.append(weights.seconds * cost.seconds + weights.bytes * cost.bytes)
            rows.add(dict.fromkeys(first[region].values(), 1.0), 1.0, 1.0)
        seconds = {index: self.costs[r][name].seconds for index, (r, name) in enumerate(variables)}
        for link in self.links:
            for name, spared in link.seconds.items():
                if spared <= 0.0 or name not in first[link.region]:
                    continue
                if any(name not in first[other] for other in link.neighbours):
                    continue
                index = len(objective)
                objective.append(-weights.seconds * spared)
                seconds[index] = -spared
                for other in {link.region, *link.neighbours}:
                    rows.add({index: 1.0, first[other][name]: -1.0}, -np.inf, 0.0)
        if np.isfinite(budget):
            scale = budget or 1.0  # in units of the budget: solvers have absolute tolerances
            noises = [self.costs[region][name].noise for region, name in variables]
            for sample in zip(*noises, strict=True):
                scaled = {index: value / scale for index, value in enumerate(sample)}
                rows.add(scaled, -np.inf, budget / scale)
        if slowest is not None:
            scale = slowest or 1.0
            rows.add({i: value / scale for i, value in seconds.items()}, -np.inf, slowest / scale)
        scale = max(map(abs, objective)) or 1.0
        least = np.array(objective) / scale
        if np.isfinite(budget) and budget > 0.0:
            most = [max(self.costs[region][name].noise, default=0.0) for region, name in variables]
            least[: len(most)] += _TIES * np.array(most) / budget
        from scipy.optimize import Bounds, milp

        with without_solver_lines():
            solved = milp(
                least,
                integrality=np.ones(len(objective)),
                bounds=Bounds(0, 1),
                constraints=rows.constraint(len(objective)),
                options={"time_limit": _SECONDS, "mip_rel_gap": _GAP},
            )
        if solved.x is None:
            raise PassError(f"the solver found no choice of candidates: {solved.message}")
        choice = [KEEP] * len(self.costs)
        for index, (region, name) in enumerate(variables):
            if solved.x[index] > 0.5:
                choice[region] = name
        return tuple(choice)


class _Rows:
    """Rows of a sparse constraint matrix, with their bounds."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._columns: list[int] = []
        self._values: list[float] = []
        self._least: list[float] = []
        self._most: list[float] = []

    def add(self, row: Mapping[int, float], least: float, most: float) -> None:
        for column, value in row.items():
            self._rows.append(len(self._least))
            self._columns.append(column)
            self._values.append(value)
        self._least.append(least)
        self._most.append(most)

    def constraint(self, columns: int) -> LinearConstraint:
        from scipy.optimize import LinearConstraint
        from scipy.sparse import coo_array

        shape = (len(self._least), columns)
        # HiGHS takes indices of 32 bits; older versions of SciPy convert none.
        indices = np.array(self._rows, np.int32), np.array(self._columns, np.int32)
        matrix = coo_array((self._values, indices), shape=shape).tocsr()
        return LinearConstraint(matrix, self._least, self._most)


_LOCK = threading.Lock()
_SOLVER = b"Highs"


@contextlib.contextmanager
def without_solver_lines() -> Iterator[None]:
    """Keep the solver's own lines off standard output for a while.

    HiGHS prints a line there in some solutions, whatever its options. What else is written to the
    file of standard output meanwhile, by other threads, goes to standard error afterwards. Where
    standard output is closed, nothing is changed.
    """
    with _LOCK, tempfile.TemporaryFile() as held:
        saved = _redirect(held.fileno())
        try:
            yield
        finally:
            if saved is not None:
                _flush()
                os.dup2(saved, 1)
                os.close(saved)
                held.seek(0)
                others = [line for line in held if not line.startswith(_SOLVER)]
                with contextlib.suppress(OSError):  # standard error is closed
                    os.write(2, b"".join(others))


def _redirect(target: int) -> int | None:
    """Let standard output be another file, and return a descriptor of what it was."""
    _flush()
    try:
        saved = os.dup(1)
    except OSError:
        return None
    os.dup2(target, 1)
    return saved


def _flush() -> None:
    """Write what Python and C have in their buffers: it belongs to the file that there is now."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        sys.stdout.flush()
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).fflush(None)
