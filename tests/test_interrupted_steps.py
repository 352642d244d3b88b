"""Ctrl-C at every step of writing a file, a bundle or a cache where CPython runs signal handlers.

Handlers run after calls of C functions, where a function begins, and where a loop goes back.
"""

from __future__ import annotations

import dis
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from narrowpass.bundle import publish
from narrowpass.bundle.manifest import FORMAT, VERSION
from narrowpass_ir.files import replacing_file, write_file
from narrowpass_planning.weights import writing

_CHECKED = {"CALL", "CALL_FUNCTION_EX", "CALL_KW", "RESUME", "JUMP_BACKWARD"}


class Interrupt:
    """Raises KeyboardInterrupt in a block at one step; a shorter block ends as it is.

    Attributes:
        where: the function and line that were interrupted; empty where nothing was.
    """

    def __init__(self, step):
        self._left, self.where, self._last = step, "", {}

    def __enter__(self):
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error):
        sys.settrace(None)
        self._last.clear()

    def _trace(self, frame, event, argument):
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        if event == "opcode":
            before = self._last.get(frame)
            self._last[frame] = dis.opname[frame.f_code.co_code[frame.f_lasti]]
            if before in _CHECKED and not self.where:
                self._left -= 1
                if self._left < 0:
                    self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno}"
                    raise KeyboardInterrupt
        elif event == "return":
            self._last.pop(frame, None)
        return self._trace


def write_alone(folder):
    with replacing_file(folder / "written") as file:
        file.write(b"x")


def write_bundle(folder):
    with publish.replacing(folder / "written") as inside:
        write_file(
            inside / "manifest.json", json.dumps({"format": FORMAT, "version": VERSION}).encode()
        )


def write_cached(folder):
    with writing.replacing(folder / "written") as file:
        file.write(b"x")


def write_cached_with_a_name(folder):
    writing._UNNAMED = 0
    write_cached(folder)


def descriptors():
    return len(list(Path("/dev/fd").iterdir()))


def interrupt_all(write, *, exists):
    """Interrupt each step of a function; return their number, and those that left something."""
    steps, wrong = 0, []
    while True:
        with tempfile.TemporaryDirectory() as name:
            folder, before = Path(name), descriptors()
            if exists:
                write(folder)
            interrupted = False
            try:
                with Interrupt(steps) as interrupt:
                    write(folder)
            except KeyboardInterrupt:
                interrupted = True
            if not interrupt.where:
                return {"steps": steps, "wrong": wrong}
            left = {path.name for path in folder.iterdir()}
            as_it_was = left == {"written"} if exists else left <= {"written"}
            if not (interrupted and as_it_was and descriptors() == before):
                wrong.append([interrupt.where, sorted(left), descriptors() - before])
            write(folder)
            assert [path.name for path in folder.iterdir()] == ["written"]
        steps += 1


@pytest.mark.parametrize("exists", ["0", "1"])
@pytest.mark.parametrize(
    "write", ["write_alone", "write_bundle", "write_cached", "write_cached_with_a_name"]
)
def test_an_interrupt_at_any_step_leaves_nothing(write, exists):
    # In a process of its own: coverage needs the trace function.
    command = [sys.executable, __file__, write, exists]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["wrong"] == []
    assert found["steps"] > 50


if __name__ == "__main__":
    print(json.dumps(interrupt_all(globals()[sys.argv[1]], exists=sys.argv[2] == "1")))
