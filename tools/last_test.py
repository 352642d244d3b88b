"""A plugin of pytest that keeps the test that started last, or the file that did not load.

With ``-x`` that is the test that failed, and in a process that was killed the one that hung. It is
kept in the file that the environment's `LAST_TEST` names.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "LAST_TEST"


def _keep(test: str) -> None:
    Path(os.environ[VARIABLE]).write_text(test, encoding="utf-8")


def pytest_runtest_logstart(nodeid: str) -> None:
    """Keep a test that starts."""
    _keep(nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """Keep a file that does not load."""
    if report.failed:
        _keep(report.nodeid)
