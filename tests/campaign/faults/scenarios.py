"""What is done while calls fail: ``python -m faults.scenarios SCENARIO CALL ERROR FOLDER [MOST]``.

The scenario is prepared once. Then a child is forked for each n, in which the n-th call fails or
kills it, until a child has fewer calls. After each child the parent looks at what is left. Prints a
line of JSON: how many children ran, and what became of them.
"""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import shutil
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

import narrowpass
from faults.compiling import Compiling
from faults.models import X, expected, model
from faults.shim import Faults
from faults.starting import Starting
from faults.stores import Calibrating, Measuring, Reopening, Sessions
from narrowpass import Bundle
from narrowpass.bundle import verify
from narrowpass.errors import NarrowpassError

ERRORS = {"ENOSPC": errno.ENOSPC, "EIO": errno.EIO, "EINTR": errno.EINTR, "ENOMEM": errno.ENOMEM}
ERRORS |= {
    "EACCES": errno.EACCES,
    "ENOLCK": errno.ENOLCK,
    "EAGAIN": errno.EAGAIN,
    "short": 0,
    "kill": -1,
}
ERRORS |= {"ahead": 50, "back": -50}
"""What becomes of a call: an errno, what `faults.c` has a number of its own for, or the years by
which the clock jumps."""

LONGEST = 120
"""Seconds after which a child hangs, and is ended by SIGALRM."""


class Saving:
    """A bundle is saved over another one: the old one or the new one is there, whole."""

    def __init__(self, folder: Path) -> None:
        self.target = folder / "m.narrow"
        Bundle({"main": model(0)}, pipeline="0").save(self.target)
        self.new = Bundle({"main": model(1)}, pipeline="1")

    def act(self) -> str:
        """Save; an error must say what to do."""
        try:
            self.new.save(self.target, threads=1)
        except NarrowpassError as error:
            text = str(error)
            return "a clear error" if str(self.target) in text else f"an unclear error: {text}"
        return "done"

    def look(self, outcome: str) -> str:
        """Check the bundle, and that nothing else lies beside it; put the old one back."""
        if verify(self.target):
            return "damaged"
        found = Bundle.load(self.target)
        seed = int(found.pipeline)
        weight = found.methods["main"].graph.initializers["a"].const_value.numpy()
        right = model(seed).graph.initializers["a"].const_value.numpy()
        if not np.array_equal(weight, right):
            return "a mixture"
        del found, weight
        left = sorted(path.name for path in self.target.parent.iterdir())
        Bundle({"main": model(0)}, pipeline="0").save(self.target)
        after = sorted(path.name for path in self.target.parent.iterdir())
        if after != [self.target.name]:
            return f"left for ever: {after}"
        if outcome == "done" and seed != 1:
            return "the old one, without an error"
        return ("the new one" if seed else "the old one") + (
            "" if left == after else ", leftovers until the next save"
        )


class _Cached:
    """A program with a cache: its results are right whatever becomes of the cache."""

    def __init__(self, folder: Path) -> None:
        self.bundle, self.cache = folder / "m.narrow", folder / "cache"
        Bundle({"main": model(0)}).save(self.bundle)
        self.right = expected(0)
        self.ready = folder / "ready"
        self.load(self.ready)
        self.load(self.ready)

    def load(self, cache: Path) -> Any:
        """Load and run once."""
        with narrowpass.load(self.bundle, "xnn-cpu", threads=1, cache_dir=cache) as program:
            result = program.run({"x": X})["y"]
            packs = program.stats()["weights"]["packs"]
        # 96 and 256 terms, accumulated in another order than numpy's.
        if not np.allclose(result, self.right, rtol=0, atol=1e-4 * np.abs(self.right).max()):
            raise AssertionError("a wrong result")
        gc.collect()
        return packs

    def act(self) -> str:
        """Load and run; without the cache, where that fails."""
        try:
            self.load(self.cache)
        except NarrowpassError as error:
            return "a clear error" if len(str(error)) > 20 else f"an unclear error: {error}"
        return "done"

    def look(self, outcome: str) -> str:
        """Load twice: both are right, and the second packs nothing."""
        del outcome
        self.load(self.cache)
        if self.load(self.cache):
            return "the cache stays unused"
        names = {p.name for p in self.cache.rglob("*") if p.is_file()}
        odd = sorted(n for n in names if n.endswith((".tmp", ".new")) or ".tmp" in n)
        return f"left for ever: {odd}" if odd else "right, and cached again"


class Filling(_Cached):
    """The cache is empty: packed weights and compiled methods are stored."""

    def act(self) -> str:
        """Begin with an empty folder."""
        return super().act()

    def look(self, outcome: str) -> str:
        """Empty the folder for the next child."""
        found = super().look(outcome)
        shutil.rmtree(self.cache)
        return found


class Reading(_Cached):
    """The cache is full: it is read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cache = self.ready


SCENARIOS = {"saving": Saving, "filling": Filling, "reading": Reading, "compiling": Compiling}
SCENARIOS |= {"measuring": Measuring, "calibrating": Calibrating}
SCENARIOS |= {"sessions": Sessions, "reopening": Reopening, "starting": Starting}


def attempt(scenario: Any, faults: Faults, call: str, n: int, error: int) -> tuple[int, str]:
    """Fork a child in which the n-th call fails; return how many there were, and its outcome."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        signal.alarm(LONGEST)
        outcome = "?"
        faults.arm(call, n, error)
        try:
            outcome = scenario.act()
        except MemoryError:
            outcome = "MemoryError"
        except BaseException as problem:  # noqa: BLE001  # it is what is looked for
            outcome = f"{type(problem).__name__}: {problem}"
        finally:
            count = faults.disarm()
            os.write(writer, f"{count} {outcome}".encode()[:4000])
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        text = file.read().decode()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        return n, f"died of signal {-status}"
    count, _, outcome = text.partition(" ")
    return int(count), outcome


def main() -> None:
    """Try each n."""
    name, call, error, folder = sys.argv[1:5]
    most = int(sys.argv[5]) if len(sys.argv) > 5 else 10_000
    logging.disable(logging.CRITICAL)
    scenario = SCENARIOS[name](Path(folder))
    faults = Faults()
    outcomes: Counter[str] = Counter()
    tries = 0
    for n in range(1, most + 1):
        count, outcome = attempt(scenario, faults, call, n, ERRORS[error])
        if count < n:
            break
        tries += 1
        outcomes[f"{outcome}; {scenario.look(outcome)}"] += 1
    sys.stdout.write(json.dumps({"tries": tries, "outcomes": outcomes}))


if __name__ == "__main__":
    main()
