"""Builds that are killed, raced or out of space: the old bundle or the new one, whole."""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import bundle_process
import pytest
from bundle_models import tree

from narrowpass.bundle import Bundle, verify
from narrowpass.errors import OutputError

SCRIPT = Path(bundle_process.__file__)


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "model.narrow"
    bundle_process.bundle(0).save(path)
    return path


def kill_once(target, seed, delay, *more):
    """Kill a build `delay` seconds after it began to save; return whether it had ended."""
    process = start("save", target, seed, *more)
    process.stdout.readline()
    process.stdin.write("\n")
    process.stdin.flush()
    time.sleep(delay)
    process.kill()
    output, _ = process.communicate()
    return "saved" in output


def duration(target):
    process = start("save", target, 0)
    process.stdout.readline()
    began = time.monotonic()
    process.stdin.write("\n")
    process.stdin.flush()
    process.stdout.readline()
    spent = time.monotonic() - began
    process.communicate()
    return spent


def kill_many(target, count, how):
    spent = duration(target)
    moments = random.Random(20)
    before = 0
    outcomes = set()
    for seed in range(10, 10 * count + 10, 10):
        ended = kill_once(target, seed, moments.uniform(0, 1.1 * spent), *how)
        after = bundle_process.check(Bundle.load(target))
        assert after in ((seed,) if ended else (seed, before))
        assert verify(target) == []
        outcomes.add((ended, after == seed))
        before = after
    bundle_process.bundle(3).save(target)
    assert names(target.parent) == [target.name]
    assert bundle_process.check(Bundle.load(target)) == 3
    return outcomes


@pytest.mark.parametrize("how", [(), ("aside",)], ids=["exchange", "move aside"])
def test_a_killed_build_leaves_the_old_bundle_or_the_new_one(target, how):
    outcomes: set[tuple[bool, bool]] = set()
    for _ in range(12):  # on a loaded machine, five kills may all come too late
        outcomes |= kill_many(target, 5, how)
        if (False, False) in outcomes:
            return
    pytest.fail(f"no build was killed before it was done: {outcomes}")


@pytest.mark.long
@pytest.mark.parametrize("how", [(), ("aside",)], ids=["exchange", "move aside"])
def test_a_build_killed_at_a_hundred_moments(target, how):
    assert {(False, False), (True, True)} <= kill_many(target, 100, how)


def killed_at_step(target, seed, step, aside):
    """Run a save in a child that dies, as if by a kill, at its `step`-th system call."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    count = 0

    def hook(event, arguments):
        nonlocal count
        if event.startswith(("os.", "open", "shutil.", "fcntl.", "ctypes.call")):
            count += 1
            if count == step:
                os.kill(os.getpid(), 9)

    status = 1
    try:
        if aside:
            bundle_process.no_exchange()
        built = bundle_process.bundle(seed)
        sys.addaudithook(hook)
        built.save(target, threads=1)
        status = 0
    finally:
        os._exit(status)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork")
@pytest.mark.parametrize("aside", [False, True], ids=["exchange", "move aside"])
def test_a_build_killed_at_each_of_its_steps(target, aside, monkeypatch):
    monkeypatch.setattr(bundle_process, "SIZE", 32)
    bundle_process.bundle(0).save(target)
    before, step, seen = 0, 0, set()
    while True:
        step += 1
        seed = 10 * step
        code = killed_at_step(target, seed, step, aside)
        after = bundle_process.check(Bundle.load(target))
        assert after in (before, seed)
        assert verify(target) == []
        seen.add(after == seed)
        before = after
        if code == 0:
            break
        assert code == -9
    assert seen == {True, False}
    assert step > 20
    assert names(target.parent) == [target.name]


def race(target, seconds, how):
    builders = [start("loop", target, 100 * (n + 1), seconds, *how) for n in range(2)]
    seen = set()
    try:
        while any(builder.poll() is None for builder in builders):
            seen.add(bundle_process.check(Bundle.load(target)))
    finally:
        counts = [int(builder.communicate()[0] or 0) for builder in builders]
    assert [builder.returncode for builder in builders] == [0, 0]
    assert min(counts) > 1
    assert verify(target) == []
    assert names(target.parent) == [target.name]
    return seen


@pytest.mark.parametrize("how", [(), ("aside",)], ids=["exchange", "move aside"])
def test_two_builds_and_a_reader_never_mix(target, how):
    assert race(target, 3, how) & {100, 101, 200, 201}


@pytest.mark.long
@pytest.mark.parametrize("how", [(), ("aside",)], ids=["exchange", "move aside"])
def test_two_builds_and_a_reader_for_a_minute(target, how):
    assert race(target, 60, how) >= {100, 101, 200, 201}


def test_two_threads_of_a_process_save_to_one_target(target):
    errors = []

    def work(seed):
        try:
            for _ in range(5):
                bundle_process.bundle(seed).save(target)
        except OutputError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert bundle_process.check(Bundle.load(target)) in (1, 2, 3)
    assert names(target.parent) == [target.name]


@pytest.mark.parametrize("limit", [0, 100, 5000, 1_000_000, 4 * 640 * 640 * 6])
def test_a_limit_on_file_sizes(target, limit):
    before = tree(target)
    process = start("limit", target, 5, limit)
    output, _ = process.communicate()
    assert process.returncode == 1
    assert str(target) in output
    assert "ulimit" in output
    assert tree(target) == before
    assert names(target.parent) == [target.name]


@pytest.mark.parametrize("function", ["pwrite", "fsync", "open"])
@pytest.mark.parametrize("call", range(1, 8))
def test_a_full_disk_at_any_write(target, monkeypatch, function, call):
    before = tree(target)
    real = getattr(os, function)
    calls = 0

    def failing(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == call:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*args, **kwargs)

    built = bundle_process.bundle(5)
    with monkeypatch.context() as patch:
        patch.setattr(os, function, failing)
        message = None
        try:
            built.save(target, threads=1)
        except OutputError as error:
            message = str(error)
    if message is not None:
        assert str(target) in message
        assert "No space left" in message
        assert "was written" in message or tree(target) == before
    assert calls >= min(call, 3)
    assert verify(target) == []
    assert names(target.parent) == [target.name]
