"""Fuzz a target: ``python -m fuzzing TARGET COUNT [--engine atheris] [--seed S]``.

With atheris inputs are led by the coverage of narrowpass's code; without it they are drawn by
their seeds. Prints how many were refused and accepted. What is no clear error ends the process.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path


def seeded(name: str, first: int, count: int, folder: Path) -> None:
    """Try inputs that are drawn by their seeds."""
    from fuzzing.targets import TARGETS, inputs

    target = TARGETS[name](folder)
    accepted = 0
    for seed, data in inputs(target, first, count):
        try:
            accepted += target.accepts(data)
        except BaseException:
            sys.stderr.write(f"target {name}, seed {seed}\n")
            raise
    sys.stdout.write(json.dumps({"refused": count - accepted, "accepted": accepted}))


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

    options = [f"-runs={count}", "-timeout=30", "-rss_limit_mb=4096", "-verbosity=0"]
    options += [f"-artifact_prefix={folder}/", "-max_len=65536"]
    atheris.Setup([sys.argv[0], *options, str(corpus)], one_input)
    atheris.Fuzz()


def main() -> None:
    """Parse the arguments and run."""
    parser = argparse.ArgumentParser(prog="fuzzing", description=__doc__)
    parser.add_argument("target")
    parser.add_argument("count", type=int)
    parser.add_argument("--engine", choices=("seeds", "atheris"), default="seeds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    folder = given.out or Path(tempfile.mkdtemp(prefix="fuzzing-"))
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
