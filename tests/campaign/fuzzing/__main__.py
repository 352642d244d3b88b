"""Fuzz a target: ``python -m fuzzing TARGET COUNT [--engine atheris] [--seed S] [--jobs J]``.

With atheris inputs are led by the coverage of narrowpass's code; without it they are drawn by
their seeds. Prints how many were refused and accepted. What is no clear error ends the process, and
so does an input that takes longer, or more memory, than `fuzzing.bounds` allows.
The target ``all`` divides the inputs among all targets, in slices with processes of their own.
With ``--long BYTES`` inputs are long ones, and what they take by their size is printed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from fuzzing.bounds import SECONDS, Bounds, taken

NOTED = "seed"
"""The file beside a target's folder that has the number of the input that is being read."""

_SLICE = 100_000


class _Silent(logging.Handler):
    """Messages must be texts, and nobody reads them."""

    def emit(self, record: logging.LogRecord) -> None:
        record.getMessage()


def seeded(name: str, first: int, count: int, folder: Path) -> None:
    """Try inputs that are drawn by their seeds."""
    from fuzzing.target import inputs
    from fuzzing.targets import TARGETS

    logging.getLogger().addHandler(_Silent())
    os.environ["RUST_BACKTRACE"] = "0"  # looking symbols up takes more than the limit
    target = TARGETS[name](folder)
    seeds = target.seeds()
    for data in seeds:
        target.accepts(data)
    bounds = Bounds(target.multiple, folder.parent / NOTED)
    accepted = 0
    for seed, data in inputs(target, seeds, first, count):
        bounds.begin(seed, len(data))
        try:
            accepted += target.accepts(data)
        except BaseException:
            bounds.end()
            sys.stderr.write(f"target {name}, seed {seed}\n")
            raise
    bounds.end()
    sys.stdout.write(json.dumps({"refused": count - accepted, "accepted": accepted}))


def long(name: str, size: int, folder: Path) -> bool:
    """Try inputs of about so many bytes; print the most memory that one took by its size."""
    from fuzzing.targets import TARGETS

    logging.getLogger().addHandler(_Silent())
    target = TARGETS[name](folder)
    seeds = target.seeds()
    for data in (*seeds, *target.grown(seeds, 100)):
        target.accepts(data)
    bounds = Bounds(target.multiple, folder.parent / NOTED)
    found, most, well = 0, 0.0, True
    for place, data in enumerate(target.grown(seeds, size)):

        def read(place: int = place, data: bytes = data) -> None:
            bounds.begin(place, len(data))
            target.accepts(data)

        peak = taken(read)
        found += 1
        if peak is None:
            sys.stderr.write(f"target {name}, long input {place}\n")
            well = False
        else:
            most = max(most, peak / len(data))
    sys.stdout.write(json.dumps({"inputs": found, "bytes for each": round(most, 1)}))
    return well


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
        noted = folder / f"{name}-{first}" / NOTED
        seed = noted.read_text().strip() if noted.exists() else "none"
        shutil.rmtree(folder / f"{name}-{first}", ignore_errors=True)
        if done.returncode:
            where = f"{' '.join(command[3:])}, at seed {seed}, status {done.returncode}"
            return name, {}, f"{where}\n{done.stderr[-3000:]}\n"
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

    options = [f"-runs={count}", f"-timeout={SECONDS}", "-rss_limit_mb=4096", "-verbosity=0"]
    options += [f"-artifact_prefix={folder}/", "-max_len=65536"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input, custom_mutator=one_mutation)
    atheris.Fuzz()


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="fuzzing", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("count", type=int, nargs="?", default=0)
    parser.add_argument("--engine", choices=("seeds", "atheris"), default="seeds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="processes at a time, for all")
    parser.add_argument(
        "--long", type=int, metavar="BYTES", help="try no damaged inputs, but long ones"
    )
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
    if given.long:
        sys.exit(0 if long(given.target, given.long, folder) else 1)
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
