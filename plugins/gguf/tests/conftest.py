"""The backends that models are run on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from narrowpass import load_plugins

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for gguf_kit


@pytest.fixture(params=["reference", "xnn-cpu"])
def backend(request):
    """Return the name of a backend that is installed."""
    if request.param not in load_plugins().registry.backends:
        pytest.skip(f"{request.param} is not installed")
    return request.param
