"""A plugin of pytest that keeps the test that started last, or the file that did not load.

With ``-x`` that is the test that failed, and in a process that was killed the one that hung. It is
kept in the file that the environment's `LAST_TEST` names, which stays open: there are many tests.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TextIO

import pytest


@functools.cache
def _file() -> TextIO:
    return Path(os.environ["LAST_TEST"]).open("w", encoding="utf-8")


def _keep(test: str) -> None:
    file = _file()
    file.seek(0)
    file.write(test)
    file.truncate()
    file.flush()


def pytest_runtest_logstart(nodeid: str) -> None:
    """Keep a test that starts."""
    _keep(nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Keep a file that does not load."""
    if report.failed:
        _keep(report.nodeid)
