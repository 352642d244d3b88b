"""Settings that all tests of the repository share."""

from __future__ import annotations

import os

from hypothesis import settings

# A loaded machine is no reason to fail; and CI must see the same examples on every run.
settings.register_profile("repository", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("repository")
