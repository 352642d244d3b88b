"""The search for the best choice within a limit, by few runs of whole models.

1. The candidate of least noise wherever it is offered: its error says how large the budget is.
2. The best choice within a budget of noise, again and again; what each run measures tightens or
   loosens the budget, and corrects the sensitivities.
3. A candidate that is in such a choice for the first time is run wherever it is offered: its time
   corrects those of its kernels, and the best choice is asked for again.
4. The best of those that were within the limit, timed longer, and judged on samples that nothing
   was chosen by. What is not, or is slower than the model as it was, is taken back. Where samples
   held out showed a larger error, the candidates of that choice are taken to err more by as much,
   and the search goes on from 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from narrowpass.errors import BackendError, PassError
from narrowpass_auto.choice.offers import Offers, Sensitivity, correct_times
from narrowpass_auto.choice.problem import KEEP, Choice, Problem, Weights
from narrowpass_auto.measure.evaluation import FEWEST, Evaluation, likely_error

if TYPE_CHECKING:
    from narrowpass_auto.limits import Limit

_RESERVED = 2
"""Evaluations that are kept for the proof."""

_GOAL = 0.9
"""The share of the limit that the likely error of other samples is aimed at."""

_MOST_GROWTH = 1e3
"""Errors are not predicted further from a run than this."""

_PROBES, _PROBED, _FAR = 3, 0.95, 10.0
"""So many candidates are run everywhere at most before budgets are tried, which promise no more
than this share of the time or bytes, until one errs by less than so many times the limit."""

_STEP = 1.1
_REPEATS = 12
"""By what a budget changes whose choice has been run, and how often before the search ends."""

_LEAST_GAIN = 0.99
"""A choice is run if it promises no more than this share of what is the best so far."""

_COMPARED, _NEAR = 4, 2.0
"""So many choices are timed with each other at the end, whose values are up to so many times the
best: times of short runs on a busy machine are no better than that."""

_SLOW = 1.1
"""A candidate that takes so many times as long wherever it is offered is not run so. What kernels
alone promise may be wrong by as much: until a run says otherwise, a choice may be slower by it."""

_NOT_SLOWER = 1.02
_FASTER = 0.98
"""Ratios of times between these are the noise of timing."""

Evaluate = Callable[[Choice], Evaluation]
Compare = Callable[[Sequence[Choice]], Sequence[float]]
Prove = Callable[[Choice], Evaluation]


@dataclass(frozen=True)
class Point:
    """A choice that was run.

    Attributes:
        choice: what it is.
        how: how it came about, for reports.
        found: what its run showed.
    """

    choice: Choice
    how: str
    found: Evaluation


@dataclass(frozen=True)
class Outcome:
    """What the search found.

    Attributes:
        chosen: the choice with what proved it; None where nothing narrower meets the limit and is
            not slower.
        proof: what it showed on the samples that nothing was chosen by.
        points: all runs, in order.
        why: why nothing was chosen; empty where something was.
        problem: with the costs that counted last.
        exhausted: whether the evaluations ended the search.
    """

    chosen: Point | None
    proof: Evaluation | None
    points: list[Point]
    why: str
    problem: Problem
    exhausted: bool


@dataclass
class Search:
    """Searches for a choice.

    Attributes:
        offers: what candidates offer.
        before: bytes of constants of the model as it is.
        limit: on the error of outputs.
        objective: the weights of seconds and bytes, each as a share of those of the model as it is.
        timed: whether runs are timed.
        evaluations: the most runs.
        evaluate: runs a choice on the samples that choices follow from.
        compare: times choices again, in turns with each other: returns the ratio of each.
        prove: runs it on the others, and times it longer.
        progress: called with what is done, and the number of runs so far.
    """

    offers: Offers
    before: int
    limit: Limit
    objective: Weights
    timed: bool
    evaluations: int
    evaluate: Evaluate
    compare: Compare
    prove: Prove
    progress: Callable[[str, int], object]
    _points: dict[Choice, Point] = field(default_factory=dict)
    _failed: dict[Choice, str] = field(default_factory=dict)
    _seen: set[str] = field(default_factory=set)
    _proofs: int = 0
    _refused: set[Choice] = field(default_factory=set)
    _doubts: dict[str, float] = field(default_factory=dict)
    _slack: float = _SLOW

    def run(self) -> Outcome:
        """Search.

        Raises:
            PassError: a candidate failed on the whole model.
        """
        self._sensitivity = Sensitivity(self.offers.names())
        for name in self._gentlest()[:_PROBES]:
            self._uniform([name])
            if any(error < _FAR * self.limit.likely_bound for error in self._usable().values()):
                break
        why = ""
        while True:
            self._tighten()
            doubts, runs = dict(self._doubts), len(self._points)
            outcome = self._finish()
            learned = self._doubts != doubts or len(self._points) != runs
            why = why or outcome.why
            if outcome.chosen or not learned or self._left() <= _RESERVED:
                return outcome if outcome.chosen else replace(outcome, why=why)

    def _gentlest(self) -> list[str]:
        """Return the candidates that promise a gain everywhere, the one of least noise first."""
        problem = self._problem()
        weights = self.weights(problem)
        keep = problem.total(self._keep())
        most = _PROBED * problem.value(self._keep(), weights)
        found = []
        for name in self.offers.names():
            choice = self.offers.uniform(name)
            cost = problem.total(choice)
            slower = self.timed and cost.seconds > _SLOW * keep.seconds
            if problem.value(choice, weights) < most and not slower:
                found.append((max(cost.noise, default=0.0), name))
        return [name for _, name in sorted(found)]

    def _keep(self) -> Choice:
        return (KEEP,) * len(self.offers.regions)

    def _problem(self) -> Problem:
        return self.offers.problem(self._sensitivity)

    def weights(self, problem: Problem) -> Weights:
        """Return the weights of a second and a byte; neither is 0, so that ties are decided."""
        keep = problem.total(problem.keep())
        little = 1e-4
        seconds = (self.objective.seconds or little) / (keep.seconds or 1.0)
        return Weights(seconds, (self.objective.bytes or little) / (keep.bytes or 1.0))

    def _solve(self, budget: float) -> Choice:
        return self.best(self._problem(), budget)

    def best(self, problem: Problem, budget: float) -> Choice:
        """Return the best choice of a problem within a budget of noise, not slower than before.

        Times of kernels are compared with a slack, which the first run that is slower takes away.
        """
        keep = problem.total(problem.keep())
        slowest = keep.seconds * self._slack if self.timed else None
        return problem.solve(self.weights(problem), budget, slowest=slowest)

    def _left(self) -> int:
        return self.evaluations - len(self._points) - len(self._failed) - self._proofs

    def _try(self, choice: Choice, how: str) -> Point | None:
        """Run a choice, unless it has been run; None where there is no run left, or it fails."""
        if choice in self._points:
            return self._points[choice]
        if choice == self._keep() or choice in self._failed or self._left() <= _RESERVED:
            return None
        self.progress(how, len(self._points))
        try:
            found = self.evaluate(choice)
        except (BackendError, PassError) as error:
            self._failed[choice] = str(error)
            return None
        point = self._points[choice] = Point(choice, how, found)
        self._sensitivity.add(self.offers.noise(choice), found.noise)
        return point

    def _within(self, found: Evaluation) -> bool:
        return found.error <= self.limit.bound and found.expected <= self.limit.likely_bound

    def _well(self, point: Point) -> bool:
        """Return whether other samples are likely to be within the limit, too."""
        return self._likely(point) <= self.limit.likely_bound

    def _likely(self, point: Point) -> float:
        doubt = max((self._doubts.get(name, 1.0) for name in point.choice), default=1.0)
        return doubt * likely_error(point.found, is_mean=self.limit.is_mean)

    def _doubt(self, point: Point, proof: Evaluation) -> None:
        """Learn by how much more the candidates of a choice err on samples held out.

        A candidate that observes ranges errs more on samples that it has not seen, those of fewer
        samples by more.
        """
        self._refused.add(point.choice)
        error = max(proof.error, proof.expected)
        likely = likely_error(point.found, is_mean=self.limit.is_mean)
        if not (0.0 < likely < math.inf) or not math.isfinite(error):
            return
        for name in {*point.choice} - {KEEP}:
            doubt = self._doubts[name] = max(self._doubts.get(name, 1.0), error / likely)
            self._sensitivity.doubt(name, doubt**self.limit.power)

    def _uniform(self, choice: Sequence[str]) -> bool:
        """Run the candidates of a choice that have not been, each wherever it is offered.

        Those that take so long there that nothing is learned from it are not run. One
        that fails is offered no more.

        Returns:
            Whether the best choice may be another one now.
        """
        corrected = False
        for name in sorted({*choice} - {KEEP} - self._seen):
            self._seen.add(name)
            problem = self._problem()
            everywhere = self.offers.uniform(name)
            slow = problem.total(everywhere).seconds >= _SLOW * problem.total(self._keep()).seconds
            if (slow and self.timed) or self._left() <= self.evaluations // 2:
                continue
            point = self._try(everywhere, f"{name} everywhere")
            if point is not None and point.found.ratio is not None:
                ratio = point.found.ratio
                correct_times(self.offers, self._sensitivity, name, everywhere, ratio)
                corrected = True
            elif everywhere in self._failed:
                self.offers.drop(name, self._failed[everywhere])
                corrected = True
        return corrected

    def _tighten(self) -> None:
        """Run the best choices within budgets that the runs so far say are the largest."""
        factor, repeats = 1.0, 0
        while repeats < _REPEATS and self._left() > _RESERVED:
            budget = factor * self._budget()
            if budget <= 0.0:
                return
            choice = self._solve(budget)
            if choice == self._keep() and budget == math.inf:
                return
            if self._uniform(choice):
                continue
            if not self._promises(choice):
                return
            known = self._points.get(choice)
            if known is None and choice not in self._failed and choice != self._keep():
                point = self._try(choice, self._how(choice, budget))
                if point is not None and (point.found.ratio or 1.0) > _NOT_SLOWER:
                    self._slack = 1.0 + 1e-9
                factor, repeats = 1.0, 0
                continue
            if budget == math.inf:
                return
            # It has been run: a budget that is a little larger, or smaller, has another choice.
            larger = choice == self._keep() or (known is not None and self._well(known))
            factor *= _STEP if larger else 1.0 / _STEP
            repeats += 1

    def _how(self, choice: Choice, budget: float) -> str:
        if choice == self._solve(math.inf):
            return "fastest" if self.objective.seconds else "smallest"
        return f"noise budget {budget:.2g}"

    def _promises(self, choice: Choice) -> bool:
        """Return whether a choice has been run, or promises more than those well within the limit.

        Runs of whole models take most of a build's time, and a gain that is smaller than the noise
        of timing cannot be seen in them. A choice that promised to pay and did not counts for none.
        """
        well = [
            point.choice
            for point in self._points.values()
            if self._well(point) and self._pays(point.found)
        ]
        if choice in self._points or not well:
            return True
        problem = self._problem()
        weights = self.weights(problem)
        best = min(problem.value(other, weights) for other in well)
        return problem.value(choice, weights) < _LEAST_GAIN * best

    def _budget(self) -> float:
        """Return the noise, as the program predicts it, at which the error is the goal.

        The likely error of other samples is taken to grow with a power of the noise from the run
        where it is nearest to the limit. It is infinite where no run had an error.
        """
        goal = _GOAL * self.limit.likely_bound
        usable = self._usable()
        if not usable or goal <= 0.0:
            exact = all(point.found.error == 0.0 for point in self._points.values())
            return math.inf if exact else 0.0
        nearest = min(usable, key=lambda choice: abs(math.log(usable[choice] / goal)))
        predicted = max(self._problem().total(nearest).noise)
        growth = min(goal / usable[nearest], _MOST_GROWTH)
        return float(predicted * growth**self.limit.power)

    def _usable(self) -> dict[Choice, float]:
        """Return the likely errors of the choices that were run, those that say something."""
        likely = {choice: self._likely(point) for choice, point in self._points.items()}
        return {choice: error for choice, error in likely.items() if 0.0 < error < math.inf}

    def _finish(self) -> Outcome:
        """Prove the best of the choices within the limit."""
        points = [
            point
            for point in self._points.values()
            if point.choice not in self._refused
            and self._within(point.found)
            and (self._well(point) or len(point.found.errors) < FEWEST)
        ]
        points = self._compared(points)
        why = ""
        for point in points:
            if not self._pays(point.found):
                why = why or _slower(point)
                continue
            if self._proofs and self._left() <= 0:
                break
            self._proofs += 1
            self.progress("proof", len(self._points) + self._proofs)
            proof = self.prove(point.choice)
            likely = self._likely(replace(point, found=_both(point.found, proof)))
            unlikely = self.limit.is_mean and likely > self.limit.likely_bound
            if not self._within(proof):
                error = max(proof.error, proof.expected)
                why = f"{self.limit.shown(error)} on the samples that are held out"
                self._doubt(point, proof)
            elif unlikely and len(proof.errors) >= FEWEST:
                why = f"by those held out, {self.limit.shown(likely)} is likely on other samples"
            elif not self._pays(proof):
                why = _slower(replace(point, found=proof))
            else:
                return self._outcome(point, proof, "")
        return self._outcome(None, None, why or self._nearest())

    def _compared(self, points: Sequence[Point]) -> list[Point]:
        """Return points, the best first, after the first few have been timed with each other.

        Each was timed at another moment, and what else ran on the machine differed.
        """

        def order(point: Point) -> tuple[float, Choice]:
            return self._value(point.found), point.choice

        ordered = sorted(points, key=order)
        first = [
            point
            for point in ordered[:_COMPARED]
            if order(point)[0] <= _NEAR * order(ordered[0])[0]
        ]
        if not self.timed or len(first) < 2:
            return ordered
        self.progress("comparing", len(self._points))
        ratios = self.compare([point.choice for point in first])
        again = [
            replace(point, found=replace(point.found, ratio=ratio))
            for point, ratio in zip(first, ratios, strict=True)
        ]
        self._points.update({point.choice: point for point in again})
        return sorted([*again, *ordered[len(first) :]], key=order)

    def _outcome(self, chosen: Point | None, proof: Evaluation | None, why: str) -> Outcome:
        exhausted = self._left() <= _RESERVED
        points = list(self._points.values())
        return Outcome(chosen, proof, points, why, self._problem(), exhausted)

    def _value(self, found: Evaluation) -> float:
        ratio = 1.0 if found.ratio is None else found.ratio
        share = found.bytes / self.before if self.before else 1.0
        small = 1e-4
        return (self.objective.seconds or small) * ratio + (self.objective.bytes or small) * share

    def _pays(self, found: Evaluation) -> bool:
        """Return whether a choice is faster, or as fast and smaller."""
        ratio = 1.0 if found.ratio is None else found.ratio
        return ratio <= _NOT_SLOWER and (ratio <= _FASTER or found.bytes < _FASTER * self.before)

    def _nearest(self) -> str:
        """Return what came nearest to the limit."""
        if not self._points:
            failed = next(iter(self._failed.values()), "")
            return failed or "no candidate offers any node anything"
        least = min(self._points.values(), key=self._likely)
        shown, likely = map(self.limit.shown, (least.found.error, self._likely(least)))
        return (
            f"the nearest, {least.how}, has {shown}, and others are likely to have up to {likely}"
        )


def _both(one: Evaluation, other: Evaluation) -> Evaluation:
    """Return an evaluation on the samples of two, for the error that is likely on others.

    The error is the larger one; what margins let expect is the mean.
    """
    errors = (*one.errors, *other.errors)
    return replace(
        other,
        errors=errors,
        error=max(one.error, other.error),
        expected=math.fsum(errors) / len(errors) if other.expected else 0.0,
    )


def _slower(point: Point) -> str:
    ratio = point.found.ratio
    if ratio is None:
        return f"{point.how} is not smaller"
    return f"{point.how} takes {ratio:.2f} times as long as before"
