"""Fuzz a target: ``python -m fuzzing TARGET COUNT [--engine atheris] [--seed S] [--jobs J]``.

With atheris inputs are led by the coverage of narrowpass's code; without it they are drawn by
their seeds. Prints how many were refused and accepted. What is no clear error ends the process, and
so does an input that takes `SECONDS`, or more than `MEMORY` beyond what the target took before.
The target ``all`` divides the inputs among all targets, in slices with processes of their own.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SECONDS = 30
"""What one input may take."""
MEMORY = 128 << 20
"""Bytes of data that the process of a target may take beyond those before the first input, which
are at most 64 KiB long."""

_SLICE = 100_000


def seeded(name: str, first: int, count: int, folder: Path) -> None:
    """Try inputs that are drawn by their seeds."""
    from fuzzing.targets import TARGETS, inputs

    target = TARGETS[name](folder)
    seeds = target.seeds()
    for data in seeds:
        target.accepts(data)
    _limit_memory()
    signal.signal(signal.SIGALRM, _too_slow)
    accepted = 0
    for seed, data in inputs(target, seeds, first, count):
        signal.alarm(SECONDS)
        try:
            accepted += target.accepts(data)
        except BaseException:
            sys.stderr.write(f"target {name}, seed {seed}\n")
            raise
    signal.alarm(0)
    sys.stdout.write(json.dumps({"refused": count - accepted, "accepted": accepted}))


def _too_slow(number: int, frame: object) -> None:
    raise AssertionError(f"an input took {SECONDS} s")


def _limit_memory() -> None:
    """Let what allocates too much fail: a MemoryError is no clear error."""
    status = Path("/proc/self/status")
    if status.exists():
        (used,) = (line.split() for line in status.read_text().splitlines() if "VmData" in line)
        limit = int(used[1]) * 1024 + MEMORY
        resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.RLIM_INFINITY))


def campaign(count: int, seed: int, jobs: int, folder: Path) -> bool:
    """Try so many inputs of all targets; print a table, and return whether all were well."""
    from fuzzing.targets import TARGETS

    shares = sum(target.share for target in TARGETS.values())
    slices = []
    for name, target in TARGETS.items():
        most = max(1, count * target.share // shares)
        part = max(1, _SLICE * target.share // 100)
        slices += [(name, seed + at, min(part, most - at)) for at in range(0, most, part)]

    def run(item: tuple[str, int, int]) -> tuple[str, dict[str, int], str]:
        name, first, most = item
        command = [sys.executable, "-W", "ignore", "-m", "fuzzing", name, str(most)]
        command += ["--seed", str(first), "--out", str(folder / f"{name}-{first}")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        shutil.rmtree(folder / f"{name}-{first}", ignore_errors=True)
        if done.returncode:
            return name, {}, f"{' '.join(command[3:])}\n{done.stderr[-3000:]}\n"
        return name, json.loads(done.stdout), ""

    totals: dict[str, Counter[str]] = {name: Counter() for name in TARGETS}
    well = True
    with ThreadPoolExecutor(jobs) as pool:
        for name, counts, problem in pool.map(run, slices):
            totals[name].update(counts)
            sys.stderr.write(problem)
            well = well and not problem
    for name, counts in totals.items():
        tried = sum(counts.values())
        text = f"{name:12} {tried:>10,} {counts['refused']:>10,} {counts['accepted']:>10,}"
        sys.stdout.write(text + "\n")
    return well


def covered(name: str, count: int, folder: Path) -> None:
    """Try inputs that atheris chooses."""
    import atheris

    with atheris.instrument_imports(include=["narrowpass", "narrowpass_ir", "narrowpass_gguf"]):
        from fuzzing.targets import TARGETS

        target = TARGETS[name](folder)
    corpus = folder / "corpus"
    corpus.mkdir()
    for index, data in enumerate(target.seeds()):
        target.accepts(data)
        (corpus / str(index)).write_bytes(data)
    found = [0, 0]

    def one_input(data: bytes) -> None:
        found[target.accepts(data)] += 1
        if sum(found) % 100 == 0:
            facts = {"refused": found[0], "accepted": found[1]}
            (folder / "counts").write_text(json.dumps(facts))

    change = target.changes()

    def one_mutation(data: bytes, most: int, seed: int) -> bytes:
        """Change what an input says; its bytes, where it cannot be parsed or has no structure."""
        if change is not None and seed % 2:
            try:
                return change(random.Random(seed), data)[:most]
            except Exception:  # noqa: BLE001  # damaged before
                pass
        mutant: bytes = atheris.Mutate(data, most)
        return mutant

    options = [f"-runs={count}", "-timeout=30", "-rss_limit_mb=4096", "-verbosity=0"]
    options += [f"-artifact_prefix={folder}/", "-max_len=65536"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input, custom_mutator=one_mutation)
    atheris.Fuzz()


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="fuzzing", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("count", type=int)
    parser.add_argument("--engine", choices=("seeds", "atheris"), default="seeds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time, for all")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.out or Path(tempfile.mkdtemp(prefix="fuzzing-"))
    if given.target == "all":
        sys.exit(0 if campaign(given.count, given.seed, given.jobs, folder) else 1)
    if given.child:
        covered(given.target, given.count, folder)
        return
    folder = folder / "inside"
    folder.mkdir(parents=True)
    if given.engine == "seeds":
        seeded(given.target, given.seed, given.count, folder)
        return
    # libFuzzer ends its process itself.
    command = [sys.executable, "-W", "ignore", "-m", "fuzzing", given.target, str(given.count)]
    done = subprocess.run(
        [*command, "--child", "--out", str(folder)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stderr[-5000:])
        sys.exit(done.returncode)
    sys.stdout.write((folder / "counts").read_text())


if __name__ == "__main__":
    main()
