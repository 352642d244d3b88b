"""Standard output has nothing of the solver's, and all of the caller's."""

import os
import subprocess
import sys

PROGRAM = """
import ctypes, os, sys
from narrowpass_auto.choice.problem import without_solver_lines
libc = ctypes.CDLL(None)
print("before")
libc.printf(b"C before\\n")
with without_solver_lines():
    libc.printf(b"HighsMipSolverData::some line;\\n")
    libc.printf(b"C within\\n")
print("after")
"""


def test_what_others_print_goes_to_standard_error():
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True
    )
    assert sorted(done.stdout.splitlines()) == ["C before", "after", "before"]
    assert done.stderr == "C within\n"


def test_a_closed_standard_output_stays_closed():
    program = (
        "import os\nos.close(1)\n"
        "from narrowpass_auto.choice.problem import without_solver_lines\n"
        "with without_solver_lines():\n    pass\n"
        "try:\n    os.fstat(1)\nexcept OSError:\n    os._exit(7)\n"
    )
    read, write = os.pipe()
    done = subprocess.run([sys.executable, "-c", program], stdout=write, check=False)
    os.close(read)
    os.close(write)
    assert done.returncode == 7


def test_errors_pass():
    from narrowpass_auto.choice.problem import without_solver_lines

    before = os.fstat(1)
    try:
        with without_solver_lines():
            raise KeyError("x")
    except KeyError:
        pass
    after = os.fstat(1)
    assert (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino)
