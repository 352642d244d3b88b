"""The helpers beside this file, and the reference's generators, can be imported."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
DOCS = HERE.parents[1] / "docs"
sys.path[:0] = [str(HERE), str(DOCS / "_ext")]


@pytest.fixture(scope="session")
def docs():
    """The folder of the documentation's source."""
    return DOCS
