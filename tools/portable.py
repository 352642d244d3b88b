"""Run a command on `xnn-cpu` with the portable operators in place of XNNPACK.

``portable.py COMMAND [ARGUMENT ...]`` compiles ``plugin_xnn_cpu/portable`` with ``$CC`` or ``cc``
into a library that stands in for XNNPACK's, and runs a command of Python's environment with it::

    python tools/portable.py pytest plugin_xnn_cpu/tests/operators

Where that is built in (``NARROWPASS_XNN_PORTABLE=1`` when ``narrowpass-xnn-cpu`` is installed),
this tool is not needed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

PLUGIN = Path(__file__).resolve().parent.parent / "plugin_xnn_cpu"
NAME = "libnarrowpass_xnnpack.so"
FLAGS = ["-std=c11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-Wall", "-Wextra", "-Werror"]


def build(folder: Path, flags: Sequence[str] = ()) -> Path:
    """Compile the portable operators into a library in `folder`, and return its path.

    Raises:
        CalledProcessError: the compiler failed.
    """
    compiler = shlex.split(os.environ.get("CC", "cc"))
    target = folder / NAME
    command = [*compiler, *FLAGS, *flags, "-fPIC", "-shared", f"-Wl,-soname,{NAME}"]
    command += [f"-I{PLUGIN / 'csrc'}", f"-I{PLUGIN / 'portable'}", "-o", str(target)]
    command += [*sorted(map(str, (PLUGIN / "portable").glob("*.c"))), "-lm"]
    subprocess.run(command, check=True)
    return target


def main() -> None:
    """Build the library, run the command with it, and exit as it does."""
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        library = build(Path(folder))
        environment = {**os.environ, "NARROWPASS_XNNPACK": str(library)}
        done = subprocess.run([sys.executable, "-m", *sys.argv[1:]], check=False, env=environment)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
