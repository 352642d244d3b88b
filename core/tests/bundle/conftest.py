"""The helpers beside this file can be imported, also by the processes that tests start."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from narrowpass.bundle import Bundle

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def saved(tmp_path):
    """Return the folder of a bundle of one method and a text."""
    from bundle_models import linear, read

    path = tmp_path / "b"
    Bundle({"main": read(linear(0, 17))}, assets={"notes.txt": b"read me"}).save(path)
    return path
