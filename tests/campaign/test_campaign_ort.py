"""Random models with onnxruntime as a backend, too, where it is installed."""

from __future__ import annotations

import pytest

pytest.importorskip("narrowpass_onnxruntime")
pytest.importorskip("narrowpass_reference")
pytest.importorskip("narrowpass_xnn_cpu")

from differential.__main__ import Campaign
from subjects_kit import check_runs


def test_random_models_with_onnxruntime(tmp_path):
    campaign = Campaign(tmp_path, float("inf"))
    campaign.slice(20_000, 150, "")
    check_runs(campaign.counts)
    assert campaign.counts["runs of onnxruntime"] > 100
    assert [entry for entry in campaign.found if not entry["known"]] == []
