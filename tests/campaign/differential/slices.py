"""One process's part of a campaign: so many cases, each by its seed."""

from __future__ import annotations

import gc
import json
import os
import signal
import warnings
from pathlib import Path

from differential.bits import LEVELLED
from differential.inferring import wrong_shapes
from differential.known import known_findings, operators_of
from differential.running import digests, run_case
from differential.subjects import SUBJECTS
from narrowpass_testing.random_models import (
    EXACT,
    PHASE,
    RECIPES,
    Case,
    Finding,
    Known,
    Subject,
    findings,
    judge,
    random_case,
    reason_for,
    reduce_case,
)

OPERATORS = RECIPES.keys()
"""Those that seeds select: operators of ONNX by domain and name, then blocks of several."""

ARITHMETIC = frozenset(
    index
    for index, (domain, name) in enumerate(OPERATORS)
    if name in LEVELLED - EXACT or domain == "qdq"
)
LEVELS_OF_ONE = 3
"""Of so many seeds of such an operator one runs at another level of instruction sets, too."""
NOTHING, APART = "draws that came to nothing", "cases with oracles apart"


def is_sampled(seed: int) -> bool:
    """Report whether a case's results are compared between levels of instruction sets."""
    times, operator = divmod(seed, len(OPERATORS))
    return operator in ARITHMETIC and (times + operator) % LEVELS_OF_ONE == 0


def run_slice(
    first: int, count: int, folder: Path, state: Path, again: range = range(0), *, bits: bool = True
) -> None:
    """Try cases; write what was counted and found.

    Args:
        first: the first seed.
        count: how many seeds.
        folder: gets ``FIRST.json``, and failing cases, shrunk.
        state: says, at every moment, which seed runs, and what of it.
        again: seeds of which digests alone are computed, where they are sampled: those of a slice
            that ran at another level of instruction sets.
        bits: whether digests are computed at this level.
    """
    os.environ.setdefault("NARROWPASS_CACHE_DIR", str(folder / "cache"))
    folder.mkdir(parents=True, exist_ok=True)
    # The modules are there for good: collections look at what the cases leave behind.
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    PHASE.descriptor = os.open(state, os.O_RDWR | os.O_CREAT, 0o600)
    entries = known_findings()
    counts: dict[str, int] = {}
    apart: dict[str, int] = {}
    found: list[dict[str, object]] = []
    found_bits: dict[int, dict[str, str]] = {}
    result = folder / f"{first}.json"
    with warnings.catch_warnings(action="ignore"):
        for seed in range(first, first + count):
            PHASE.seed = seed
            PHASE("drawing")
            _limit(120, 1200)  # what hangs dies of it, and its state says where
            case = random_case(seed, zeros=True)
            if case is None:
                counts[NOTHING] = counts.get(NOTHING, 0) + 1
                continue
            before = counts.get(APART, 0)
            found += [_entry(case, f, seed, folder, entries) for f in run_case(case, seed, counts)]
            if counts.get(APART, 0) > before:
                name = OPERATORS[seed % len(OPERATORS)][1]
                apart[name] = apart.get(name, 0) + 1
            if bits and is_sampled(seed):
                found_bits[seed] = digests(case)
            if seed % 50 == 0:
                _write(result, seed + 1, counts, apart, found, found_bits)
        _write(result, first + count, counts, apart, found, found_bits)
        for seed in filter(is_sampled, again):
            PHASE.seed = seed
            PHASE("drawing")
            _limit(120, 1200)
            case = random_case(seed, zeros=True)
            if case is not None:
                found_bits[seed] = digests(case)
    _limit(0, 0)
    _write(result, first + count, counts, apart, found, found_bits)


def _limit(computing: int, waiting: int) -> None:
    """End the process after seconds of its processor time, or of time where it waits; 0 for never.

    Time alone would end what only had to wait for a processor that other work shared.
    """
    signal.setitimer(signal.ITIMER_PROF, computing)
    signal.alarm(waiting)


def _write(
    path: Path,
    following: int,
    counts: dict[str, int],
    apart: dict[str, int],
    found: list[dict[str, object]],
    found_bits: dict[int, dict[str, str]],
) -> None:
    facts = {"next": following, "counts": counts, "apart": apart, "found": found}
    facts["digests"] = {str(seed): those for seed, those in found_bits.items()}
    path.with_suffix(".new").write_text(json.dumps(facts))
    path.with_suffix(".new").replace(path)


def _entry(
    case: Case, finding: Finding, seed: int, folder: Path, entries: list[Known]
) -> dict[str, object]:
    facts: dict[str, object] = {"seed": seed, **vars(finding)}
    reason = reason_for(case, finding, entries)
    small = case
    if reason is None:
        names = set(operators_of(case))
        small = reduce_case(case, lambda smaller: _same(smaller, finding), tries=120)
        # One operator less may fail for another reason: then the message says nothing any more.
        facts["dropped"] = sorted(names - set(operators_of(small)))
        reason = reason_for(small, finding, entries)
    if reason is None:
        notes = {"kind": finding.kind, "subject": finding.subject, "message": finding.message}
        name = f"{seed}-{finding.subject}".replace(" ", "-").replace(",", "")
        facts["file"] = small.save(folder, name, notes).name
    facts["operators"] = sorted(set(operators_of(small)))
    facts["known"] = reason
    return facts


def _same(case: Case, finding: Finding) -> bool:
    """Report whether a case fails as a finding says."""
    try:
        found = findings_of(case, SUBJECTS.get(finding.subject))
    except Exception:  # noqa: BLE001  # a model that shrinking broke
        return False
    return any(f.kind == finding.kind for f in found)


def findings_of(case: Case, subject: Subject | None) -> list[Finding]:
    """Return what is wrong with one subject on a case, or with inferred shapes where it is None."""
    if subject is not None:
        return findings(case, subject)
    verdict = judge(case.model, case.feeds, case.slack)
    return list(wrong_shapes(case, verdict)) if verdict.candidates else []
