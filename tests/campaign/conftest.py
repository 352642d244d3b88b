"""Where the packages of the campaigns are, and which oracle and backend they need."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Return the folder of the library that lets calls fail."""
    from faults.shim import build

    folder = tmp_path_factory.mktemp("faults")
    reason = build(folder)
    if reason:
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a folder with a model of 8 MB and a bundle of it."""
    from faults.memory import prepare

    folder = tmp_path_factory.mktemp("memory")
    prepare(folder)
    return folder
