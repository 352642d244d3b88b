"""Settings that all tests of the repository share."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

# A loaded machine is no reason to fail; and CI must see the same examples on every run.
settings.register_profile("repository", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("repository")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep packed weights of tests out of the user's cache directory."""
    os.environ["NARROWPASS_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
