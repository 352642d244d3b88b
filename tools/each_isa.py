"""Run the tests of narrowpass-xnn-cpu with the levels of instruction sets below the processor's.

``each_isa.py RECORD [--one] [PYTEST ARGUMENT ...]`` runs them once for each level that the build
and the processor have below the highest one, capped by ``NARROWPASS_ISA``; the highest one is what
the tests run with by themselves. Where that variable is set already, levels go up to what it names.
With ``--one`` it is one level, the kernels' own tests: AVX2's, which most processors have, or the
base. The levels that were run are printed at the end, and written to the file RECORD.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from pytest_command import COMMAND, KERNELS, TESTS

from narrowpass_xnn_cpu.native import isa
from narrowpass_xnn_cpu.native.library import extension

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


def run(level: str, arguments: list[str], *, one: bool) -> int:
    """Run the tests with a level; return pytest's exit code."""
    sys.stdout.write(f"instruction sets: {isa.VARIABLE}={level}\n")
    sys.stdout.flush()
    command = [*COMMAND, "-q", "-m", "not long and not anywhere"]
    command += ["-k", "" if one else SELECTIONS.get(level, "")]
    tests = KERNELS if one else (TESTS,)
    environment = {**os.environ, isa.VARIABLE: level}
    done = subprocess.run([*command, *map(str, tests), *arguments], check=False, env=environment)
    return done.returncode


def main() -> None:
    """Run each level; exit with 1 where tests of one fail."""
    record, *arguments = sys.argv[1:]
    one = "--one" in arguments
    arguments = [argument for argument in arguments if argument != "--one"]
    lib = extension().lib
    highest, detected = isa.in_use(lib), isa.of_processor(lib)
    below = [
        level for level in isa.built(lib) if isa.LEVELS.index(level) < isa.LEVELS.index(highest)
    ]
    if one:
        below = ["avx2"] if "avx2" in below else below[:1]
    failed = [level for level in below if run(level, arguments, one=one)]
    passed = [level for level in below if level not in failed]
    text = f"instruction sets: the processor has {detected}, all tests ran with {highest}"
    what = "the kernels' tests" if one else "those of the native backend"
    text += f"; {what} passed with {', '.join(passed) or 'none below'}"
    text += f" and failed with {', '.join(failed)}\n" if failed else "\n"
    Path(record).write_text(text, encoding="utf-8")
    sys.stdout.write(text)
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
