"""Runs a case with each subject and compares what comes of it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from differential.bits import batched, digest, is_fixed, is_levelled, of_rows, other_bits
from differential.cases import Case
from differential.elements import Array
from differential.inferring import wrong_shapes
from differential.oracles import PHASE, Values, Verdict, difference, differences, judge
from differential.rounding import is_rounding
from differential.subjects import SUBJECTS, Finding, Subject, available, copies
from differential.traits import DRAWN_BY_CHANCE
from narrowpass import Program
from narrowpass.errors import NarrowpassError


def run_case(
    case: Case, seed: int, counts: dict[str, int], subjects: Sequence[Subject] | None = None
) -> Iterator[Finding]:
    """Judge a case and run it everywhere.

    Args:
        case: model and feeds.
        seed: selects the pipeline.
        counts: where runs, and what the oracles said, are counted.
        subjects: what to test; by default all backends and one pipeline.
    """
    verdict = judge(case.model, case.feeds, case.slack)
    if not verdict.candidates:
        _count(counts, "cases that no oracle runs")
        return
    _count(counts, _word(verdict))
    yield from wrong_shapes(case, verdict)
    if subjects is None:
        always, chosen = available()
        turns = [s for s in chosen if not s.calibrated or _calibrates(case)]
        # By chance: in turn, each operator would meet the same few of them.
        drawn = random.Random(f"subject {seed}")
        subjects = [*always, *([drawn.choice(turns)] if turns else [])]
    judged = Sizes(case)
    for subject in subjects:
        yield from run_subject(case, subject, verdict, counts, judged)


class Sizes:
    """Feeds of a case at other sizes of its symbols, with what the oracles say about each.

    A symbol may be the rank of something, as that of ConstantOfShape of int64[M]: sizes at which an
    output has other axes than the model declares are left out.

    The oracles run once for all subjects. `runs` has what each subject computed, by where.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.runs: dict[str, dict[str, Values]] = {}
        self._judged: list[tuple[dict[str, Array], Verdict]] | None = None

    def judged(self) -> list[tuple[dict[str, Array], Verdict]]:
        """Return the feeds about which both oracles agree."""
        if self._judged is None:
            self._judged = []
            for more in (1, 3):
                sizes = {name: size + more for name, size in self.case.sizes.items()}
                feeds = self.case.resized(sizes)
                verdict = judge(self.case.model, feeds, self.case.slack)
                # Where they do not, sizes are bound by constants of the model.
                agree = verdict.both and not (verdict.apart or verdict.alone)
                if agree and _has_ranks(verdict.values, self.case):
                    self._judged.append((feeds, verdict))
        return self._judged


def _calibrates(case: Case) -> bool:
    """Report whether ranges can be measured: on elements, which are the same in each round."""
    return is_fixed(case) and all(array.size for array in case.feeds.values())


def _has_ranks(values: Values, case: Case) -> bool:
    """Report whether outputs have as many axes as the model declares."""
    types = {value.name: value.type.tensor_type for value in case.model.graph.output}
    return all(
        not types[name].HasField("shape") or np.ndim(value) == len(types[name].shape.dim)
        for name, value in values.items()
    )


def run_subject(
    case: Case,
    subject: Subject,
    verdict: Verdict,
    counts: dict[str, int],
    judged: Sizes | None = None,
) -> Iterator[Finding]:
    """Run one subject: the feeds of the case, other sizes of its symbols, the first ones again."""
    judged = judged or Sizes(case)
    if subject.like and subject.like not in judged.runs:
        list(run_subject(case, SUBJECTS[subject.like], verdict, {}, judged))
    PHASE(subject.name)
    found: list[Finding] = []

    def guarded(action: Callable[[], Any], must: bool) -> Any:
        try:
            with warnings.catch_warnings(action="ignore"), np.errstate(all="ignore"):
                return action()
        except NarrowpassError as error:
            if must:
                found.append(Finding("refused", subject.name, str(error)))
        except Exception as error:  # noqa: BLE001  # it is what is looked for
            text = f"{type(error).__name__}: {error}"
            found.append(Finding("exception", subject.name, text))
        return None

    both = verdict.both and not verdict.alone
    rows = batched(case, verdict.values) if subject.rows else None
    PHASE(subject.name)
    program = guarded(lambda: subject.program(rows or case), both)
    runs, foreign = judged.runs.setdefault(subject.name, {}), False
    if program is not None:
        with program:
            # onnxruntime divides a convolution among its threads in its own way.
            foreign = bool(subject.like) and ("Conv", "onnxruntime") in {
                (plan.op_type, plan.kernel) for plan in program.explain()
            }
            _count(counts, f"runs of {subject.name}")
            got = guarded(lambda: program.run(copies(case.feeds)), both)
            if got is not None:
                runs[""] = got
                found += compare(case, subject, got, verdict)
                if rows is not None and not found:
                    _count(counts, f"rows alone of {subject.name}")
                    found += _rows(case, subject, program, guarded, got)
                if case.sizes and subject.pipeline is None and rows is None and not found:
                    found += _sizes(case, subject, program, guarded, counts, verdict, judged)
    if subject.like and is_fixed(case) and not found and not foreign:
        for where, values in judged.runs.get(subject.like, {}).items():
            text = other_bits(runs[where], values) if where in runs else ""
            if text:
                found.append(Finding("other bits", subject.name, f"{where}{text}"))
                break
    yield from found


def _rows(
    case: Case,
    subject: Subject,
    program: Program,
    guarded: Callable[[Callable[[], Any], bool], Any],
    whole: Values,
) -> list[Finding]:
    """Compare the bits of rows alone, and of a part of them, with those of all rows."""
    count = next(iter(case.feeds.values())).shape[0]
    for rows in (slice(0, 1), slice(count - 1, count), slice(count // 2, count)):
        got = guarded(lambda rows=rows: program.run(of_rows(case.feeds, rows)), True)  # type: ignore[misc]
        text = "" if got is None else other_bits(got, of_rows(whole, rows))
        if text:
            message = f"rows {rows.start} to {rows.stop - 1} of {count} alone: {text}"
            return [Finding("other bits", subject.name, message)]
    return []


def digests(case: Case) -> dict[str, str]:
    """Return digests of what has the same bits at each level of instruction sets, by subject."""
    found: dict[str, str] = {}
    if not is_levelled(case):
        return found
    for subject in (s for s in available()[1] if s.levels):
        PHASE(f"{subject.name} at another level")
        try:
            with (
                warnings.catch_warnings(action="ignore"),
                np.errstate(all="ignore"),
                subject.program(case) as program,
            ):
                found[subject.name] = digest(program.run(copies(case.feeds)))
        except Exception as error:  # noqa: BLE001  # it is the same at each level
            found[subject.name] = type(error).__name__
    return found


def _sizes(
    case: Case,
    subject: Subject,
    program: Program,
    guarded: Callable[[Callable[[], Any], bool], Any],
    counts: dict[str, int],
    first: Verdict,
    judged: Sizes,
) -> list[Finding]:
    found: list[Finding] = []
    others = judged.judged()
    PHASE(subject.name)
    places = ("at other sizes: ", "at larger sizes: ")
    for (feeds, verdict), where in zip(others, places, strict=False):
        _count(counts, f"runs of {subject.name}")
        got = guarded(lambda feeds=feeds: program.run(copies(feeds)), True)  # type: ignore[misc]
        if got is not None:
            judged.runs[subject.name][where] = got
            resized = replace(case, feeds=feeds)
            found += compare(resized, subject, got, verdict, where)
    got = guarded(lambda: program.run(copies(case.feeds)), True)
    if got is not None:
        where = "at the first sizes again: "
        judged.runs[subject.name][where] = got
        found += compare(case, subject, got, first, where)
    return found


def compare(
    case: Case, subject: Subject, got: Values, verdict: Verdict, where: str = ""
) -> list[Finding]:
    """Compare a subject's outputs with the oracles'."""
    kinds = {node.op_type for node in case.model.graph.node}
    if kinds & DRAWN_BY_CHANCE:
        for name, value in verdict.values.items():
            zero = difference(np.zeros_like(got[name]), np.zeros_like(value), None)
            if zero:
                return [Finding("wrong type or shape", subject.name, f"{where}{name}: {zero}")]
        return []
    tolerance = subject.tolerance
    if tolerance is not None and not _continuous(case, verdict):
        return []
    found = {
        oracle: differences(got, values, tolerance, case.slack)
        for oracle, values in verdict.candidates.items()
    }
    for name in dict.fromkeys(name for values in verdict.candidates.values() for name in values):
        texts = [wrong[name] for wrong in found.values() if name in wrong]
        judges = sum(name in values for values in verdict.candidates.values())
        if not texts or (name in verdict.apart and len(texts) < judges):
            continue
        theirs = [values[name] for values in verdict.candidates.values() if name in values]
        if tolerance is None and any(is_rounding(case, name, got.get(name), v) for v in theirs):
            continue
        if name in verdict.apart:
            each = "; ".join(f"{oracle}: {wrong[name]}" for oracle, wrong in found.items())
            text = f"{where}{name}: {each}; theirs: {verdict.apart[name]}"
            return [Finding("as neither oracle", subject.name, text)]
        kind = "wrong" if judges == 2 else "not as the only oracle"
        return [Finding(kind, subject.name, f"{where}{name}: {texts[0]}")]
    return []


def _continuous(case: Case, verdict: Verdict) -> bool:
    """Report whether rounding to a narrow type leaves results about where they are."""
    from differential.traits import DISCONTINUOUS, EXACT

    kinds = {node.op_type for node in case.model.graph.node}
    jumps = kinds & (DISCONTINUOUS - EXACT)
    whole = any(isinstance(v, np.ndarray) and v.dtype.kind != "f" for v in verdict.values.values())
    return not jumps and not whole


def _word(verdict: Verdict) -> str:
    if verdict.apart or verdict.alone:
        return "cases with oracles apart"
    if len(verdict.candidates) == 1:
        return f"cases that only {next(iter(verdict.candidates))} runs"
    if not verdict.both:
        return "cases that the oracles run in parts"
    return "cases with oracles that agree"


def _count(counts: dict[str, int], name: str) -> None:
    counts[name] = counts.get(name, 0) + 1
