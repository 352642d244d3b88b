"""Builds, loads and runs with too little memory, and with more and more of it."""

from __future__ import annotations

import re
import shutil
import signal
import sys

import pytest

pytest.importorskip("narrowpass_xnn_cpu")
pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's"),
]

MB = 1 << 20
NO_FRAME = "SystemError: error return without exception set"
"""What CPython 3.11 raises in place of a MemoryError where it cannot allocate a frame."""
ALLOWED = re.compile(f"right|MemoryError|{NO_FRAME}|a clear error: .*", re.DOTALL)
ENDED, NO_MEMORY_TO_THROW = 127, "cannot allocate memory for thread-local data"
"""How glibc ends a process in which a library in C++, as onnx, throws the first exception of a
thread for want of memory."""
HALF_A_REGISTRY = re.compile(
    r"Schema error: std::bad_alloc"
    r"|Segmentation fault\n(?:.*\n)*?Current thread .*\n  File .*_operators\.py.* in find_schema\n"
)
"""What is on stderr where onnx 1.23 is ended for want of memory for its schemas: its own words, or
the line of ours that asks for a schema."""
ACTIONS = ("build", "load", "run")
FEW = (0, 3, 10, 40, 400)
MANY = (*range(24), *range(24, 120, 4), *range(120, 401, 20))


def check(prepared, folder, action, kind, limits):
    """Try limits in MB; the least must be too little, and the last enough."""
    from faults import memory

    from narrowpass import Bundle
    from narrowpass.bundle import verify

    outcomes = []
    for more in limits:
        shutil.copytree(prepared, folder, dirs_exist_ok=True)
        done = memory.start(action, more * MB, kind, folder)
        said = done.stdout
        if done.returncode == ENDED and NO_MEMORY_TO_THROW in done.stderr:
            said = "ended by glibc"
        elif done.returncode == -signal.SIGSEGV and HALF_A_REGISTRY.search(done.stderr):
            said = "ended by onnx"
        elif done.returncode == 1 and done.stderr.rstrip().endswith(NO_FRAME):
            said = NO_FRAME
        else:
            assert done.returncode == 0, f"{more} MB: {done.returncode} {done.stderr[-2000:]}"
            assert ALLOWED.fullmatch(said), f"{more} MB: {said}"
        outcomes.append(said)
        assert verify(folder / "m.narrow") == []
        found = Bundle.load(folder / "m.narrow").methods["main"].graph.initializers["a"]
        assert (found.const_value.numpy() == memory.weights()[0]).all()
        left = {path.name for path in folder.iterdir()} - {"m.onnx", "m.narrow", "cache"}
        assert left == set()
    print(action, kind, {limit: text[:40] for limit, text in zip(limits, outcomes, strict=True)})
    assert outcomes[0] != "right"
    assert outcomes[-1] == "right"


@pytest.mark.parametrize("action", ACTIONS)
def test_some_limits(prepared, tmp_path, action):
    check(prepared, tmp_path, action, "data", FEW)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["data", "address"])
@pytest.mark.parametrize("action", ACTIONS)
def test_many_limits(prepared, tmp_path, action, kind):
    check(prepared, tmp_path, action, kind, MANY)
