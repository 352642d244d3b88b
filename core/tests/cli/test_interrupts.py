"""Signals within finalizers, whose exceptions Python drops."""

from __future__ import annotations

import signal
import sys
import time

import pytest

from narrowpass.cli._errors import redeliver_interrupts
from narrowpass.cli._limits import TimeoutInterrupt


class _Freed:
    """An object in whose finalizer something is raised."""

    def __init__(self, end):
        self._end = end

    def __del__(self):
        self._end()


def _free(end):
    freed = _Freed(end)
    del freed


def _wait():
    for _ in range(10_000):
        time.sleep(0.001)


@pytest.fixture(autouse=True)
def _handlers():
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGALRM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _run(*ends):
    """Free an object with each finalizer, then wait for what is raised afterwards."""
    with redeliver_interrupts():
        for end in ends:
            _free(end)
        _wait()


def test_an_interrupt_in_a_finalizer_is_raised_after_it():
    with pytest.raises(KeyboardInterrupt):
        _run(lambda: signal.raise_signal(signal.SIGINT))


def test_it_is_raised_after_a_second_finalizer_too():
    def wait():
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            time.sleep(0.001)

    with pytest.raises(KeyboardInterrupt):
        _run(lambda: signal.raise_signal(signal.SIGINT), wait)


def test_the_end_of_the_time_stays_that():
    def over(number, frame):
        raise TimeoutInterrupt("not done")

    signal.signal(signal.SIGALRM, over)
    with pytest.raises(TimeoutInterrupt, match="not done"):
        _run(lambda: signal.raise_signal(signal.SIGALRM))


def test_other_exceptions_are_reported_as_before(monkeypatch):
    seen = []
    monkeypatch.setattr(sys, "unraisablehook", seen.append)
    hook = sys.unraisablehook

    def fail():
        raise ValueError("of a finalizer")

    with redeliver_interrupts():
        _free(fail)
    assert [str(item.exc_value) for item in seen] == ["of a finalizer"]
    assert sys.unraisablehook is hook
