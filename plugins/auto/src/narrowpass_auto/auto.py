"""The pass ``auto``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

import onnx_ir as ir

from narrowpass import Decision, Pass, PassResult
from narrowpass.errors import PassError, UsageError
from narrowpass.framework.classify import matching_nodes
from narrowpass.runtime.oracle import oracle
from narrowpass_auto.agreement import CONFIDENCE, proven_agreement, rows_to_prove
from narrowpass_auto.choice.offers import Offers
from narrowpass_auto.choice.problem import KEEP, Choice, Weights
from narrowpass_auto.choice.search import Outcome, Search
from narrowpass_auto.data import Split, generated, parse_sizes
from narrowpass_auto.exhibits import exhibits
from narrowpass_auto.graph.assignment import Assignment
from narrowpass_auto.graph.units import find_regions, find_units, followers, name_nodes
from narrowpass_auto.limits import Limit
from narrowpass_auto.measure.database import Database, default_path, processor_text
from narrowpass_auto.measure.evaluation import Evaluation, Evaluator
from narrowpass_auto.measure.kernels import measure_offers
from narrowpass_auto.measure.trials import model_key
from narrowpass_ir.arguments import suggest
from narrowpass_ir.sizes import count_bytes

if TYPE_CHECKING:
    from narrowpass import Candidate, Context
    from narrowpass.runtime.backend import Backend

_OBJECTIVES = {
    "latency": Weights(1.0, 0.0),
    "bytes": Weights(0.0, 1.0),
    "mix": Weights(1.0, 1.0),
}
_DEFAULT = Limit("rel", 1e-2)
_WIDE = "fp32"
_SHORT, _LONG = 0.25, 1.0
"""Seconds for which whole models are timed in turns, in the search and for the proof."""


@dataclass(frozen=True)
class Auto(Pass):
    """Choose the fastest or smallest types of all nodes that keep outputs within an error.

    Attributes:
        max_error: the most error of the outputs: ``rel``, ``sqnr``, ``cosine``, ``top1``, ``kl`` or
            ``module:function``, with a limit, such as ``cosine:0.999``.
        objective: what is minimized: time of a run, bytes of weights, or both in equal shares of
            what they were. No result is slower than the model as it was, whatever is minimized.
        allow: the candidates among which is chosen, such as ``int8`` or ``bf16``; all that are
            installed where there are none.
        red: nodes that stay as they are: globs of names, ``op:TYPE``.
        evaluations: the most runs of whole models over the samples.
        sizes: of symbolic dimensions where there are no samples, such as ``sequence=128``; 1 for
            those that are not there.
    """

    name: ClassVar[str] = "auto"
    serves: ClassVar[Mapping[str, str]] = MappingProxyType({"--max-error": ""})
    max_error: Limit = _DEFAULT
    objective: Literal["latency", "bytes", "mix"] = "latency"
    allow: tuple[str, ...] = ()
    red: tuple[str, ...] = ()
    evaluations: int = 20
    sizes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the options.

        Raises:
            OptionError: a value that does not fit its field's type.
            UsageError: too few evaluations, or a size that is none.
        """
        super().__post_init__()
        if self.evaluations < _LEAST_EVALUATIONS:
            raise UsageError(f"evaluations must be at least {_LEAST_EVALUATIONS}")
        parse_sizes(self.sizes)

    def run(self, model: ir.Model, ctx: Context) -> PassResult:
        """Choose, and rewrite.

        Counters: ``evaluations`` (runs of whole models), and the number of nodes of each candidate.

        Raises:
            PassError: no candidate is installed; a name in `allow` that none has.
            BackendError: the model cannot be run.
            DataError: a sample does not fit.
        """
        backend, timed = _runner(ctx)
        named = model.clone()
        name_nodes(named)
        samples = ctx.samples
        if samples is None:
            samples, notes = generated(named.graph, parse_sizes(self.sizes))
            ctx.observer.log.warning(
                "auto: no calibration data: errors are those on random inputs, and candidates that "
                "need data are left out; pass --calibration DATA"
            )
            for note in notes:
                ctx.observer.log.warning("auto: %s", note)
        split = Split(samples)
        candidates = self._candidates(ctx)
        inner = replace(ctx, samples=split.seen if ctx.samples is not None else None)
        red = self._red(named, ctx)
        units = find_units(named, red)
        if not units:
            return PassResult(model, False, "no node has weights whose type could change")
        regions = find_regions(units)
        database = Database(default_path() if timed else None)
        try:
            processor = processor_text(backend)
            offers = measure_offers(
                named,
                units,
                regions,
                candidates,
                split.chosen_by,
                inner,
                backend,
                database if timed else None,
                processor,
            )
            assignment = Assignment(
                named, units, regions, followers(named, units, red), candidates, inner
            )
            outcome = self._search(
                named, offers, assignment, split, inner, backend, database if timed else None
            )
        finally:
            database.close()
        return self._result(model, named, offers, outcome, assignment, split, ctx)

    def _candidates(self, ctx: Context) -> dict[str, Candidate]:
        """Return the candidates to choose among, by name."""
        known = ctx.candidates
        for name in self.allow:
            if name not in known and name != _WIDE:
                listing = ", ".join(sorted(known)) or "none"
                raise PassError(
                    f"allow: no candidate {name!r}{suggest(name, known)}; installed: {listing}"
                )
        if not known:
            raise PassError(
                "no plugin with candidates is installed; install narrowpass-fp16, "
                "narrowpass-int8-sym or narrowpass-int4"
            )
        found = {}
        for name, candidate in known.items():
            if self.allow and name not in self.allow:
                continue
            reason = candidate.reject_reason(ctx.target)
            if not reason and candidate.needs_data and ctx.samples is None:
                reason = "it needs calibration data"
            if reason:
                ctx.observer.log.info("auto: %s is left out: %s", name, reason)
            else:
                found[name] = candidate
        return found

    def _red(self, model: ir.Model, ctx: Context) -> set[ir.Node]:
        found: set[ir.Node] = set()
        for item, nodes in matching_nodes(self.red, model.graph).items():
            if not nodes:
                ctx.observer.log.warning("auto: red item %r selects no node", item)
            found.update(nodes)
        return found

    def _search(
        self,
        model: ir.Model,
        offers: Offers,
        assignment: Assignment,
        split: Split,
        ctx: Context,
        backend: Backend,
        database: Database | None,
    ) -> Outcome:
        evaluator = Evaluator(model, split.chosen_by, self.max_error, backend)
        processor = processor_text(backend)
        before = model_key(model)

        def measure(evaluator: Evaluator, choice: Choice, seconds: float) -> Evaluation:
            rewritten = assignment.apply(choice)
            key = f"model {before} as {model_key(rewritten)} for {seconds} s"
            known = None if database is None else database.find(processor, key)
            wanted = seconds if database is not None and known is None else 0.0
            meter, ratio = evaluator.measure(rewritten, wanted)
            if database is not None:
                (ratio,) = known or database.add(processor, key, (ratio or 0.0,))
            return Evaluation(
                meter.error,
                meter.noise,
                ratio,
                count_bytes(rewritten),
                meter.errors,
                meter.expected,
                meter.rows,
            )

        def compare(choices: Sequence[Choice]) -> list[float]:
            models = [assignment.apply(choice) for choice in choices]
            keys = [f"model {before} as {model_key(each)} with others" for each in models]
            kept = [None if database is None else database.find(processor, key) for key in keys]
            known = [ratios[0] for ratios in kept if ratios is not None]
            if database is None or len(known) == len(keys):
                return known
            return [
                database.add(processor, key, (ratio,))[0]
                for key, ratio in zip(keys, evaluator.compare(models, _SHORT), strict=True)
            ]

        def prove(choice: Choice) -> Evaluation:
            evaluator.close()
            held_out = Evaluator(model, split.held_out, self.max_error, backend)
            try:
                return measure(held_out, choice, _LONG)
            finally:
                held_out.close()

        search = Search(
            offers,
            count_bytes(model),
            self.max_error,
            _OBJECTIVES[self.objective],
            database is not None,
            self.evaluations,
            lambda choice: measure(evaluator, choice, _SHORT),
            compare,
            prove,
            lambda what, done: ctx.observer.progress(f"auto: {what}", done, self.evaluations),
        )
        try:
            outcome = search.run()
        finally:
            evaluator.close()
        ctx.exhibits.extend(
            exhibits(offers, outcome, self.max_error, count_bytes(model), search.best)
        )
        return outcome

    def _warn_of_few(self, proof: Evaluation, ctx: Context) -> None:
        """Warn where the rows held out are too few to prove the agreement."""
        share = 1.0 - self.max_error.bound
        if self.max_error.metric != "top1" or not proof.rows or not 0.0 < share < 1.0:
            return
        agreeing = round((1.0 - proof.error) * proof.rows)
        proven = proven_agreement(agreeing, proof.rows)
        if proven < share:
            ctx.observer.log.warning(
                "auto: %d of %d rows held out agree, which proves an agreement of %.3g (with a "
                "confidence of %g) and not yet %s; by the margins of the rows %.4g is likely; "
                "%d rows held out, all of which agree, would prove it",
                agreeing,
                proof.rows,
                proven,
                CONFIDENCE,
                self.max_error,
                1.0 - proof.expected,
                rows_to_prove(share),
            )

    def _result(
        self,
        model: ir.Model,
        named: ir.Model,
        offers: Offers,
        outcome: Outcome,
        assignment: Assignment,
        split: Split,
        ctx: Context,
    ) -> PassResult:
        ctx.counters["evaluations"] = len(outcome.points)
        choice = outcome.problem.keep() if outcome.chosen is None else outcome.chosen.choice
        _report(offers, outcome, choice, ctx)
        if outcome.chosen is None or outcome.proof is None:
            ctx.observer.log.warning(
                "auto: the model stays as it is: no choice within %s is faster or smaller: %s",
                self.max_error,
                outcome.why,
            )
            return PassResult(model, False, f"unchanged: {outcome.why}")
        proof = outcome.proof
        self._warn_of_few(proof, ctx)
        where = "the sample that it was chosen by" if split.alone else "samples held out"
        parts = [f"{self.max_error.shown(proof.error)} on {where}"]
        if proof.ratio is not None:
            parts.append(f"{1.0 / proof.ratio:.2f} times as fast")
        before = count_bytes(named)
        parts.append(f"{proof.bytes / before:.0%} of the bytes" if before else "")
        counts = ", ".join(
            f"{count} {name}"
            for name, count in sorted(ctx.counters.items())
            if name != "evaluations"
        )
        return PassResult(assignment.apply(choice), True, "; ".join([*filter(None, parts), counts]))


_LEAST_EVALUATIONS = 4


def _runner(ctx: Context) -> tuple[Backend, bool]:
    """Return the backend that runs models, and whether its times count."""
    target = ctx.target
    if target is not None:
        reason = target.available()
        if reason is None:
            return target, not target.is_oracle
        ctx.observer.log.warning(
            "auto: %s cannot run here (%s): times are estimated, and errors are those of %s",
            target.name,
            reason,
            oracle().name,
        )
    return oracle(), False


def _report(offers: Offers, outcome: Outcome, choice: Choice, ctx: Context) -> None:
    """Add a decision for each unit."""
    for index, region in enumerate(offers.regions):
        name = choice[index]
        for number in region.units:
            unit = offers.units[number]
            offer = offers.by_unit[number][name]
            ctx.decisions.append(
                Decision(
                    node=unit.name,
                    op_type=unit.node.op_type,
                    decision=name or _WIDE,
                    by="auto",
                    reason=_reason(offers, number, name),
                    measured=offer.loss,
                )
            )
            if name:
                ctx.counters[name] += 1
                ctx.used.add(name)


def _reason(offers: Offers, number: int, chosen: str) -> str:
    """Return what the candidates cost that were not chosen, or why they are none."""
    texts = []
    for name, offer in offers.by_unit[number].items():
        if name == KEEP or offer.seconds is None:
            continue
        wide = offers.by_unit[number][KEEP].seconds or 0.0
        mark = " (chosen)" if name == chosen else ""
        times = f"{1e6 * offer.seconds:.3g} of {1e6 * wide:.3g} µs"
        texts.append(f"{name}{mark}: {times}, noise {offer.loss:.1e}")
    texts += [f"{name}: {reason}" for name, reason in sorted(offers.reasons[number].items())]
    return "; ".join(texts)
