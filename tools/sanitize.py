"""Run the tests of narrowpass-xnn-cpu with its C code under sanitizers.

``sanitize.py [--thread] [--every-case] [PYTEST ARGUMENT ...]`` builds the extension with
AddressSanitizer and UBSan, or with ThreadSanitizer, into the plugin that is installed for the
Python that runs this, and starts the kernels' tests: a part of the cases of those that have many.
With ``--every-case`` all cases of all tests, and random models. Leaks are not looked for: an
interpreter has too many of its own. Under ThreadSanitizer programs have three threads, and divide
small tensors, too; XNNPACK and Python are not compiled with it, and what they do is not looked at.
Without a compiler that has the sanitizers it says so, and ends well.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from pytest_command import COMMAND, KERNELS, TESTS

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "plugin_xnn_cpu"
# Children of the tests do not come up under the sanitizer, or take more memory than they may.
LEFT_OUT = (
    "not library and not forked and not hostile and not every_instruction_set and not without_fma"
)
LONG = " and not special_values"
"""What is left out where not every case is run: the sanitizers take minutes for it."""

CASES = "12"
"""Of each test: more repeat the same code on other numbers, and the sanitizers take minutes."""

KINDS = {
    "address": ("libasan.so", {"ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1"}),
    "thread": (
        "libtsan.so",
        {
            "TSAN_OPTIONS": "halt_on_error=1:exitcode=66:ignore_noninstrumented_modules=1:"
            "allocator_may_return_null=1:"
            "report_signal_unsafe=0:detect_deadlocks=0",
            "NARROWPASS_TEST_THREADS": "3",
        },
    ),
}
"""By the value of `NARROWPASS_XNN_SANITIZE`: the library to preload, and the environment."""


def library(name: str) -> str | None:
    """Return the path of a library of the compiler; None where it has none of that name."""
    compiler = os.environ.get("CC", "cc")
    try:
        done = subprocess.run(
            [compiler, f"-print-file-name={name}"], check=True, capture_output=True, text=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    path = Path(done.stdout.strip())
    return str(path) if path.is_absolute() and path.exists() else None


def build(kind: str) -> None:
    """Build the extension into the installed plugin; the XNNPACK that lies there is taken."""
    packages = Path(sysconfig.get_path("platlib"))
    for file in packages.glob("narrowpass_xnn_cpu/native/_xnn*.so"):
        file.unlink()  # it may be one file with that of other environments
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(packages)]
    environment = {**os.environ, "NARROWPASS_XNN_SANITIZE": kind}
    subprocess.run(command, check=True, cwd=PLUGIN, env=environment)


def main() -> None:
    """Build and run; exit with the code of the tests."""
    options = {"--thread", "--every-case"} & set(sys.argv[1:])
    arguments = [argument for argument in sys.argv[1:] if argument not in options]
    kind = "thread" if "--thread" in options else "address"
    name, settings = KINDS[kind]
    sanitizer = library(name)
    if sanitizer is None:
        sys.stdout.write(f"skipped: the C compiler has no {name}\n")
        return
    build(kind)
    environment = {
        **os.environ,
        **settings,
        # The sanitizer looks for the C++ library when it starts, to hear of exceptions.
        "LD_PRELOAD": ":".join(filter(None, (sanitizer, library("libstdc++.so.6")))),
        "NARROWPASS_XNN_WITHOUT_DEEPBIND": "1",
    }
    tests, selection = [*KERNELS], LEFT_OUT
    if "--every-case" not in options:
        environment.setdefault("NARROWPASS_TEST_CASES", CASES)
        selection += LONG
    else:
        tests = [TESTS, ROOT / "tests" / "campaign" / "test_differential.py"]
    command = [*COMMAND, "-k", selection, *map(str, tests), *arguments]
    done = subprocess.run(command, check=False, env=environment)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
