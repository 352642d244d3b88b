"""A pass that consists of passes, which run in turn until none of them changes the model.

This module imports neither onnx nor numpy, so that a plugin's entry module may import it.
"""

from __future__ import annotations

import abc
import dataclasses
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass.errors import PassError
from narrowpass.framework.context import Context, Decision
from narrowpass.framework.passes import Pass, PassResult, run_checked

if TYPE_CHECKING:
    import onnx_ir as ir


@dataclass(frozen=True)
class FixedPoint(Pass):
    """Passes that run in turn, again and again, until none of them changes the model.

    A subclass says in `parts` which passes these are; it may hand its own options on to them. A
    part is not run again while the model is as that part left it, so that a model on which
    nothing is to be done costs each part one look.

    Counters add up over the rounds. A decision that is `Decision.open`, and a counter of that
    name, count as the part's last run left them: what one round could not do, a later one may.

    Attributes:
        most_rounds: after so many rounds the parts are taken to undo each other's work.
    """

    most_rounds: ClassVar[int] = 100

    @abc.abstractmethod
    def parts(self) -> tuple[Pass, ...]:
        """Return the passes, in the order in which they run."""

    @property
    def may_change_signature(self) -> bool:
        """Whether one of the parts may."""
        return any(part.may_change_signature for part in self.parts())

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Run the parts until the model stays as it is.

        Args:
            model: may be changed in place.
            ctx: handed on to the parts; it collects what all of them report.

        Raises:
            PassError: a part failed, or the model still changes after `most_rounds` rounds; the
                message names the part.
        """
        model, changed = self.run_parts(model, ctx)
        return PassResult(model, bool(changed))

    def run_parts(self, model: ir.Model, ctx: Context) -> tuple[ir.Model, frozenset[str]]:
        """Do what `run` does; return the model, and the names of the parts that changed it."""
        parts = self.parts()
        tally = _Tally(len(parts))
        changed: set[str] = set()
        settled = 0
        for turn in range(self.most_rounds * len(parts)):
            index = turn % len(parts)
            inner = dataclasses.replace(ctx, counters=Counter(), decisions=[])
            start = time.perf_counter()
            result = _run_part(parts[index], model, inner)
            ctx.observer.log.debug(
                "%s: round %d: %s: %.3f s%s",
                self.name,
                turn // len(parts) + 1,
                parts[index].name,
                time.perf_counter() - start,
                "" if result.modified else ", no change",
            )
            tally.add(index, inner)
            model = result.model
            if result.modified:
                changed.add(parts[index].name)
            # A part that changed something is not known to be done with the model: it looks again.
            settled = 0 if result.modified else settled + 1
            if settled == len(parts):
                tally.publish(ctx)
                return model, frozenset(changed)
        raise PassError(
            f"the model still changes after {self.most_rounds} rounds of "
            f"{', '.join(part.name for part in parts)}: two of them undo each other's work"
        )


def _run_part(part: Pass, model: ir.Model, ctx: Context) -> PassResult:
    try:
        return run_checked(part, model, ctx)
    except PassError as error:
        error.args = (f"part {str(part)!r}: {error}",)
        raise


class _Tally:
    """Counters and decisions of all runs: what was done adds up, what was left open does not."""

    def __init__(self, parts: int) -> None:
        self._counters: Counter[str] = Counter()
        self._done: list[Decision] = []
        self._open: list[tuple[Counter[str], list[Decision]]] = [(Counter(), [])] * parts

    def add(self, index: int, ctx: Context) -> None:
        """Take what part `index` reported in one run."""
        left = [decision for decision in ctx.decisions if decision.open]
        names = {decision.decision for decision in left}
        self._done.extend(decision for decision in ctx.decisions if not decision.open)
        still = Counter({name: ctx.counters[name] for name in names if name in ctx.counters})
        self._counters.update(ctx.counters - still)
        self._open[index] = (still, left)

    def publish(self, ctx: Context) -> None:
        """Hand everything to `ctx`."""
        ctx.counters.update(self._counters)
        ctx.decisions.extend(self._done)
        for counters, decisions in self._open:
            ctx.counters.update(counters)
            ctx.decisions.extend(decisions)
