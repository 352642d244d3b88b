"""One process's part of a campaign: so many cases, each by its seed."""

from __future__ import annotations

import gc
import json
import os
import signal
import warnings
from pathlib import Path

from differential.builder import random_case
from differential.cases import Case
from differential.known import Known, known_findings, operators_of, reason_for
from differential.oracles import PHASE, judge
from differential.recipes import RECIPES
from differential.shrink import shrunk
from differential.subjects import BACKENDS, PIPELINES, Finding, Subject, run_case, run_subject

OPERATORS = tuple(sorted(RECIPES))
NOTHING, APART = "draws that came to nothing", "cases with oracles apart"
SUBJECTS = {subject.name: subject for subject in (*BACKENDS, *PIPELINES)}


def run_slice(first: int, count: int, folder: Path, state: Path) -> None:
    """Try cases; write what was counted and found.

    Args:
        first: the first seed.
        count: how many seeds.
        folder: gets ``FIRST.json``, and failing cases, shrunk.
        state: says, at every moment, which seed runs, and what of it.
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
    result = folder / f"{first}.json"
    with warnings.catch_warnings(action="ignore"):
        for seed in range(first, first + count):
            PHASE.seed = seed
            PHASE("drawing")
            _limit(120, 1200)  # what hangs dies of it, and its state says where
            case = random_case(seed, OPERATORS)
            if case is None:
                counts[NOTHING] = counts.get(NOTHING, 0) + 1
                continue
            before = counts.get(APART, 0)
            found += [_entry(case, f, seed, folder, entries) for f in run_case(case, seed, counts)]
            if counts.get(APART, 0) > before:
                name = OPERATORS[seed % len(OPERATORS)][1]
                apart[name] = apart.get(name, 0) + 1
            if seed % 50 == 0:
                _write(result, seed + 1, counts, apart, found)
    _limit(0, 0)
    _write(result, first + count, counts, apart, found)


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
) -> None:
    facts = {"next": following, "counts": counts, "apart": apart, "found": found}
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
        small = shrunk(case, lambda smaller: _same(smaller, finding), tries=120)
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
    return any(f.kind == finding.kind for f in findings_of(case, SUBJECTS[finding.subject]))


def findings_of(case: Case, subject: Subject) -> list[Finding]:
    """Return what is wrong with one subject on a case."""
    try:
        verdict = judge(case.model, case.feeds, case.slack)
        return list(run_subject(case, subject, verdict, {})) if verdict.candidates else []
    except Exception:  # noqa: BLE001  # a model that shrinking broke
        return []
