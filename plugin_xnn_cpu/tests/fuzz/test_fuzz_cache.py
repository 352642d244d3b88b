"""Mutated files of packed weights and bundles, in a process of their own; see ``fuzz_cache.py``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.anywhere

SCRIPT = Path(__file__).parent / "fuzz_cache.py"
SECONDS = 3600


def campaign(folder: Path, first: int, count: int) -> Counter[str]:
    """Try so many seeds; a crash fails with the seed that was being tried."""
    command = [sys.executable, str(SCRIPT), str(folder), str(first), str(count)]
    kits = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1] / "kits")}
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=SECONDS, check=False, env=kits
    )
    seed = int.from_bytes((folder / "seed").read_bytes(), "little")
    assert done.returncode == 0, f"seed {seed}, exit {done.returncode}:\n{done.stderr[-4000:]}"
    return Counter(json.loads(done.stdout))


def check(counts: Counter[str]) -> None:
    """Mutations that all fail at the door would test only that."""
    for kind in ("cache files", "bundles"):
        assert counts[f"{kind} refused"] > counts[f"{kind} accepted"] > 0, counts
    assert counts["loaded by a program"] > 0


def test_mutated_files(tmp_path):
    check(campaign(tmp_path / "fuzz", 0, 1500))


@pytest.mark.long
def test_a_million_mutated_files(tmp_path):
    total = Counter[str]()
    for first in range(0, 1_000_000, 20_000):
        total += campaign(tmp_path / "fuzz", first, 20_000)
    check(total)


def test_a_crash_is_seen_with_its_seed(tmp_path, monkeypatch):
    """The supervisor itself: a worker that dies is a failure that names the seed."""
    worker = tmp_path / "dies.py"
    worker.write_text(
        "import os, pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "folder.mkdir()\n"
        "(folder / 'seed').write_bytes((77).to_bytes(8, 'little'))\n"
        "os.kill(os.getpid(), 11)\n"
    )
    monkeypatch.setattr(sys.modules[__name__], "SCRIPT", worker)
    with pytest.raises(AssertionError, match=r"seed 77, exit (-11|1)"):
        campaign(tmp_path / "fuzz", 0, 1)
