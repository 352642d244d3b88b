"""Runs a case with each subject and compares what comes of it."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator, Sequence

import numpy as np

from differential.bits import digest, is_levelled
from differential.inferring import wrong_shapes
from differential.subjects import LEVELLED, available
from narrowpass_testing.random_models import (
    PHASE,
    Case,
    Finding,
    Sizes,
    Subject,
    Verdict,
    copies,
    is_fixed,
    judge,
    run_subject,
)


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


def _calibrates(case: Case) -> bool:
    """Report whether ranges can be measured: on elements, which are the same in each round."""
    return is_fixed(case) and all(array.size for array in case.feeds.values())


def digests(case: Case) -> dict[str, str]:
    """Return digests of what has the same bits at each level of instruction sets, by subject."""
    found: dict[str, str] = {}
    if not is_levelled(case):
        return found
    for subject in (s for s in available()[1] if s.name in LEVELLED):
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
