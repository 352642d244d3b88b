import statistics
import sys
from pathlib import Path

import pytest

from narrowpass_auto.measure import evaluation, kernels

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def own_times(tmp_path, monkeypatch):
    """Keep times of a test to itself."""
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path / "cache"))


@pytest.fixture
def steady_times(monkeypatch):
    """Take kernels to take a nanosecond a byte, and narrower models half the time.

    What small kernels really take differs from run to run, and with it what is chosen.
    """

    def of_bytes(offers):
        return statistics.median(offer.bytes for offer in offers) * 1e-9, 0.0, 0.0

    monkeypatch.setattr(kernels, "_median", of_bytes)
    monkeypatch.setattr(evaluation, "_ratios", lambda programs, *_: [0.5] * (len(programs) - 1))
