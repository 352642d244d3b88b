"""Run the tests of narrowpass-xnn-cpu with each level of instruction sets that the processor has.

``each_isa.py [PYTEST ARGUMENT ...]`` runs them once for each level below the highest one, capped by
``NARROWPASS_ISA``; the highest one is what the tests run with by themselves. Where that variable is
set already, levels go up to what it names. The levels that were run are printed at the end.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from narrowpass_xnn_cpu.native import isa
from narrowpass_xnn_cpu.native.library import extension

TESTS = Path(__file__).resolve().parent.parent / "plugin_xnn_cpu" / "tests"


def run(level: str) -> int:
    """Run the tests with a level; give pytest's exit code."""
    sys.stdout.write(f"instruction sets: {isa.VARIABLE}={level}\n")
    sys.stdout.flush()
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", "auto", "-q"]
    environment = {**os.environ, isa.VARIABLE: level}
    done = subprocess.run([*command, str(TESTS), *sys.argv[1:]], check=False, env=environment)
    return done.returncode


def main() -> None:
    """Run each level; exit with 1 where tests of one fail."""
    lib = extension().lib
    highest, detected = isa.in_use(lib), isa.detected(lib)
    failed = [level for level in isa.LEVELS[: isa.LEVELS.index(highest)] if run(level)]
    passed = [x for x in isa.LEVELS[: isa.LEVELS.index(highest)] if x not in failed]
    sys.stdout.write(
        f"instruction sets: the processor has {detected}; other tests ran with {highest}; "
        f"passed with {', '.join(passed) or 'none below'}"
        f"{'; failed with ' + ', '.join(failed) if failed else ''}\n"
    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
