"""The thread pool, cancellation and the weights cache under ThreadSanitizer, by a driver in C.

`races.c` runs them in several threads at once. Mutants, in which an order of memory or a lock is
missing, show that a race is found where there is one.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.anywhere

CSRC = Path(__file__).resolve().parents[2] / "csrc"
FILES = ("team", "workers", "weights_cache", "cancel")
FLAGS = ("-std=c11", "-g", "-O1", "-w", "-fsanitize=thread", f"-I{CSRC}")

UNLOCKED = "#define pthread_mutex_lock(mutex) 0\n#define pthread_mutex_unlock(mutex) 0\n"

MUTANTS = [
    ("team", "gate, 1, memory_order_release", "gate, 1, memory_order_relaxed"),
    ("team", "gate, memory_order_acquire) & WITHIN", "gate, memory_order_relaxed) & WITHIN"),
    ("team", "memory_order_acquire, memory_order_relaxed)", "0, 0)"),
    ("team", "taken, memory_order_release", "taken, memory_order_relaxed"),
    ("weights_cache", "#define BUCKETS", f"{UNLOCKED}#define BUCKETS"),
]
"""A file, what stands in it, and what a mutant has instead."""


@pytest.fixture(scope="module")
def compiler(tmp_path_factory):
    """Return the C compiler, if what it compiles runs under ThreadSanitizer here."""
    name = os.environ.get("CC", "cc")
    folder = tmp_path_factory.mktemp("empty")
    (folder / "empty.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    program = folder / "empty"
    try:
        command = [name, "-fsanitize=thread", str(folder / "empty.c"), "-o", str(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        pytest.skip(f"there is no C compiler: {error}")
    if done.returncode:
        pytest.skip(f"the C compiler has no ThreadSanitizer: {done.stderr[-200:]}")
    done = subprocess.run([program], capture_output=True, text=True, check=False)
    if done.returncode:  # some versions want addresses that the kernel draws elsewhere
        pytest.skip(f"ThreadSanitizer does not run here: {done.stderr[-200:]}")
    return name


def run(compiler, folder, times, mutant=None):
    """Compile the driver and run it so often; return how it ended."""
    sources = [Path(__file__).with_name("races.c")]
    for name in FILES:
        source = CSRC / "runtime" / f"{name}.c"
        if mutant and mutant[0] == name:
            text = source.read_text(encoding="utf-8")
            assert mutant[1] in text
            source = folder / source.name
            source.write_text(text.replace(*mutant[1:]), encoding="utf-8")
        sources.append(source)
    program = folder / "races"
    command = [compiler, *FLAGS, *map(str, sources), "-lpthread", "-o", str(program)]
    subprocess.run(command, check=True)
    return subprocess.run(
        [program, str(times)],
        env={**os.environ, "TSAN_OPTIONS": "halt_on_error=1:exitcode=66"},
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


def test_no_race_is_found(compiler, tmp_path):
    done = run(compiler, tmp_path, 3)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "72000 jobs, 72000 tasks, 18000 sessions\n"


@pytest.mark.long
def test_no_race_is_found_in_many_runs(compiler, tmp_path):
    done = run(compiler, tmp_path, 100)
    print(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.long
@pytest.mark.parametrize("mutant", MUTANTS, ids=range(len(MUTANTS)))
def test_a_race_is_found(compiler, tmp_path, mutant):
    done = run(compiler, tmp_path, 20, mutant)
    assert done.returncode == 66, done.stderr
    assert "ThreadSanitizer: data race" in done.stderr
