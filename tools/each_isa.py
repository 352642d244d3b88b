"""Run the tests of narrowpass-xnn-cpu with each level of instruction sets that the processor has.

``each_isa.py RECORD [PYTEST ARGUMENT ...]`` runs them once for each level below the highest one,
capped by ``NARROWPASS_ISA``; the highest one is what the tests run with by themselves. Where that
variable is set already, levels go up to what it names. The levels that were run are printed at the
end, and written to the file RECORD.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pytest_command import COMMAND

from narrowpass_xnn_cpu.native import isa
from narrowpass_xnn_cpu.native.library import extension

TESTS = Path(__file__).resolve().parent.parent / "plugin_xnn_cpu" / "tests"


NARROW = "int8 or bf16 or bfloat16 or nbits or quantized"
SELECTIONS = {
    "sse4": "kernels or conv or gemm or attention or norm or recurrent or graphs",
    "avx512": NARROW,
    "avx512vnni": "bf16 or bfloat16",
    "avx512bf16": NARROW,
}
"""What is run with a level that differs from the next one in these; with others everything is.

The kernels of float32 are the same from AVX-512 on: all tests run with the highest level.
"""


def run(level: str) -> int:
    """Run the tests with a level; return pytest's exit code."""
    sys.stdout.write(f"instruction sets: {isa.VARIABLE}={level}\n")
    sys.stdout.flush()
    command = [*COMMAND, "-q"]
    command += ["-m", "not long and not anywhere", "-k", SELECTIONS.get(level, "")]
    environment = {**os.environ, isa.VARIABLE: level}
    done = subprocess.run([*command, str(TESTS), *sys.argv[2:]], check=False, env=environment)
    return done.returncode


def main() -> None:
    """Run each level; exit with 1 where tests of one fail."""
    lib = extension().lib
    highest, detected = isa.in_use(lib), isa.detected(lib)
    below = isa.LEVELS[: isa.LEVELS.index(highest)]
    failed = [level for level in below if run(level)]
    passed = [level for level in below if level not in failed]
    text = f"instruction sets: the processor has {detected}, all tests ran with {highest}"
    text += f"; those of the native backend passed with {', '.join(passed) or 'none below'}"
    text += f" and failed with {', '.join(failed)}\n" if failed else "\n"
    Path(sys.argv[1]).write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
