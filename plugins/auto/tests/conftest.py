import sys
from pathlib import Path

import pytest

from narrowpass_auto import testing

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def own_times(tmp_path, monkeypatch):
    """Keep times of a test to itself."""
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def steady_times():
    with testing.steady_times():
        yield
