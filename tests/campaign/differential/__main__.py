"""Run a campaign: ``python -m differential --cases N --seed S --jobs J --out FOLDER``.

Slices of cases run in processes of their own, at each level of instruction sets in turn; from AVX2
on some of the cases of the slice before run at its level, too, and must have the same bits. A
process that dies is a finding, with the seed and with what it was doing; the slice goes on behind
it. Exits with 1 where something was found that `known.toml` does not list.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from differential.known import known_findings, operators_of
from differential.slices import run_slice
from narrowpass_testing.random_models import Finding, random_case, reason_for

ROOT = Path(__file__).resolve().parents[1]
UNFUSED = "sse4"
"""The level that rounds a multiplication and an addition each, and has bits of its own."""


def levels() -> list[str]:
    """Return the levels of instruction sets that run here, "" for the processor's own."""
    try:
        from narrowpass_xnn_cpu.native import isa
        from narrowpass_xnn_cpu.native.library import extension
    except ImportError:
        return [""]
    library = extension().lib
    lower = isa.LEVELS[: isa.LEVELS.index(isa.in_use(library))]
    return ["", *(level for level in lower if level in isa.built(library))]


class Campaign:
    """Runs slices and puts their results together."""

    def __init__(self, folder: Path, deadline: float) -> None:
        self.folder, self.deadline = folder, deadline
        self.counts: Counter[str] = Counter()
        self.apart: Counter[str] = Counter()
        self.found: list[dict[str, Any]] = []
        self.digests: dict[int, dict[str, dict[str, str]]] = {}

    def slice(self, first: int, count: int, level: str, again: range = range(0)) -> None:
        """Run seeds in a process; again behind the seed that it died of.

        Args:
            first: the first seed.
            count: how many.
            level: the level of instruction sets, "" for the processor's own.
            again: seeds of which digests alone are computed; see `run_slice`.
        """
        begin, end = first, first + count
        while first < end and time.monotonic() < self.deadline:
            state = self.folder / f"state-{first}"
            command = [sys.executable, "-X", "faulthandler", "-m", "differential"]
            command += ["--slice", str(first), "--cases", str(end - first)]
            command += ["--out", str(self.folder), "--state", str(state)]
            if level == UNFUSED:
                command += ["--no-bits"]
            elif again:
                command += ["--again", str(again.start), str(again.stop)]
            environment = {**os.environ, "PYTHONPATH": str(ROOT)}
            if level:
                environment["NARROWPASS_ISA"] = level
            with (self.folder / f"log-{first}").open("w") as log:
                done = subprocess.run(command, env=environment, stderr=log, check=False)
            facts = self._result(self.folder / f"{first}.json")
            self._keep(facts, level)
            if done.returncode == 0:
                self._add(facts, level, end - first)
                return
            seed, _, phase = state.read_text().strip().partition(" ")
            # What was counted since the last record is lost; findings are few and are tried again.
            self._add(facts, level, min(max(int(seed) - first, 0), end - first))
            oracle = phase in ("onnxruntime", "onnx's evaluator", "drawing")
            kind = "an oracle died" if oracle else "died"
            self.counts[f"cases that {phase} died of"] += 1
            if not oracle:
                self.found.append(
                    {
                        "seed": int(seed),
                        "kind": kind,
                        "subject": phase,
                        "message": f"exit {done.returncode}, level {level or 'own'}",
                        "operators": [],
                        "known": None,
                    }
                )
            # Beyond the slice it died of a digest, when all else was written.
            first = int(seed) + 1 if begin <= int(seed) < end else end

    def _keep(self, facts: dict[str, Any], level: str) -> None:
        for seed, digests in facts.get("digests", {}).items():
            self.digests.setdefault(int(seed), {})[level or "own"] = digests

    def compare_levels(self) -> None:
        """Add what has other bits at one level of instruction sets than at another one."""
        entries = known_findings()
        for seed, levels in sorted(self.digests.items()):
            (one, theirs), *others = levels.items()
            for other, found in others:
                self.counts["results compared between two levels"] += len(found)
                for subject in sorted(found):
                    if found[subject] == theirs.get(subject, found[subject]):
                        continue
                    message = f"levels {one} and {other} have other bits"
                    finding = Finding("other bits", subject, message)
                    case = random_case(seed, zeros=True)
                    self.found.append(
                        {
                            "seed": seed,
                            **vars(finding),
                            "level": other,
                            "operators": sorted(set(operators_of(case))) if case else [],
                            "known": reason_for(case, finding, entries) if case else None,
                        }
                    )

    def _result(self, path: Path) -> dict[str, Any]:
        if not path.exists():
            return {"counts": {}, "apart": {}, "found": []}
        facts: dict[str, Any] = json.loads(path.read_text())
        return facts

    def _add(self, facts: dict[str, Any], level: str, seeds: int) -> None:
        self.counts.update(facts["counts"])
        self.counts[f"seeds at {level or 'the own level'}"] += seeds
        self.apart.update(facts["apart"])
        self.found += [{**entry, "level": level} for entry in facts["found"]]

    def report(self) -> str:
        """Return the results as text."""
        lines = [f"{count:>10,}  {name}" for name, count in sorted(self.counts.items())]
        lines.append("oracles apart, by operator: ")
        lines += [f"{count:>10,}  {name}" for name, count in self.apart.most_common()]
        known = Counter(entry["known"] for entry in self.found if entry["known"])
        lines.append("known findings:")
        lines += [f"{count:>10,}  {reason}" for reason, count in known.most_common()]
        fresh = [entry for entry in self.found if not entry["known"]]
        lines.append(f"new findings: {len(fresh)}")
        groups = Counter((e["kind"], e["subject"], " ".join(e["operators"])) for e in fresh)
        for (kind, subject, operators), count in groups.most_common():
            one = next(
                e
                for e in fresh
                if (e["kind"], e["subject"], " ".join(e["operators"])) == (kind, subject, operators)
            )
            lines.append(f"{count:>6}  {kind} | {subject} | {operators} | seed {one['seed']}")
            lines.append(f"        {one['message'][:300]}")
        return "\n".join(lines)


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="differential", description=__doc__)
    parser.add_argument("--cases", type=int, default=2000, help="how many seeds")
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time")
    parser.add_argument("--minutes", type=float, default=1e6, help="start no slice after these")
    parser.add_argument("--part", type=int, default=1000, help="cases of a slice")
    parser.add_argument("--out", type=Path, help="a folder for failing cases")
    parser.add_argument("--slice", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--again", type=int, nargs=2, default=(0, 0), help=argparse.SUPPRESS)
    parser.add_argument("--no-bits", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.out or Path(tempfile.mkdtemp(prefix="campaign-"))
    if given.slice is not None:
        again, bits = range(*given.again), not given.no_bits
        run_slice(given.slice, given.cases, folder, given.state, again, bits=bits)
        return
    folder.mkdir(parents=True, exist_ok=True)
    campaign = Campaign(folder, time.monotonic() + 60 * given.minutes)
    began, names = time.monotonic(), levels()
    firsts = range(given.seed, given.seed + given.cases, given.part)
    before = range(0)
    with ThreadPoolExecutor(given.jobs) as pool:
        for index, first in enumerate(firsts):
            count = min(given.part, given.seed + given.cases - first)
            level = names[index % len(names)]
            pool.submit(campaign.slice, first, count, level, before)
            if level != UNFUSED:
                before = range(first, first + count)
    campaign.compare_levels()
    text = campaign.report() + f"\n{time.monotonic() - began:.0f} s; cases are in {folder}\n"
    (folder / "report.txt").write_text(text)
    sys.stdout.write(text)
    sys.exit(1 if any(not entry["known"] for entry in campaign.found) else 0)


if __name__ == "__main__":
    main()
