"""The kernel for rows of int8 with ARM's dot product, cross-compiled and run under emulation.

A driver in C (`nbits_driver.c`) compares it with the plain kernel, bit by bit, and with double
precision. It is built for this processor too, so that the driver itself is known to work.
"""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(FOLDER))  # of the build's modules

from build_tools.extension import FLAGS  # noqa: E402
from build_tools.instruction_sets import INSTRUCTION_SETS  # noqa: E402

pytestmark = pytest.mark.anywhere

COMPILER = "aarch64-linux-gnu-gcc"
EMULATOR = "qemu-aarch64"
CASES = 4 * 8 * 3 * 2
"""Shapes, rows, bits and kinds of zero points that the driver runs."""


def built(compiler, folder, sets):
    """Compile the kernels for two instruction sets, and the driver; return the program."""
    csrc, objects = FOLDER / "csrc", []
    # Without contraction a compiler has no choice where to round.
    common = [compiler, "-std=c11", "-O2", *FLAGS[1:], "-ffp-contract=off", f"-I{csrc}", "-c"]
    for name in sets:
        found = INSTRUCTION_SETS[name]
        objects.append(folder / f"{name}.o")
        named = [f"-DNP_ISA={name}", f"-DLANES={found.lanes}", *found.flags]
        source = csrc / "gemv" / "nbits_int8_code.c"
        subprocess.run([*common, *named, source, "-o", objects[-1]], check=True)
    first, second = sets
    for source in (csrc / "gemv" / "nbits_pack.c", FOLDER / "tests" / "gemm" / "nbits_driver.c"):
        objects.append(folder / f"{source.stem}.o")
        named = [f"-DA={first}", f"-DB={second}"]
        subprocess.run([*common, *named, source, "-o", objects[-1]], check=True)
    program = folder / "driver"
    subprocess.run([compiler, "-static", *objects, "-lm", "-o", program], check=True)
    return program


def test_dot_product_under_emulation(tmp_path):
    for name in (COMPILER, EMULATOR):
        if shutil.which(name) is None:
            pytest.skip(f"there is no {name}")
    program = built(COMPILER, tmp_path, ("plain", "neondot"))
    dump = [COMPILER.replace("gcc", "objdump"), "-d", str(tmp_path / "neondot.o")]
    code = subprocess.run(dump, check=True, capture_output=True, text=True).stdout
    assert "sdot" in code
    run = [EMULATOR, "-cpu", "max", str(program), "same"]
    done = subprocess.run(run, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{CASES} cases\n"), done


def test_the_driver_on_this_processor(tmp_path):
    if platform.machine() != "x86_64" or shutil.which("gcc") is None:
        pytest.skip("this is not x86-64, or has no gcc")
    program = built("gcc", tmp_path, ("plain", "avx2"))
    done = subprocess.run([str(program)], check=False, capture_output=True, text=True)
    if done.returncode < 0:
        pytest.skip("the processor has no AVX2")
    assert (done.returncode, done.stdout) == (0, f"{CASES} cases\n"), done
