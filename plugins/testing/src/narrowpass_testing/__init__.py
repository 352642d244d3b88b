"""Test kit for authors of plugins: models from text, passes run under checks, random feeds.

The helpers fail with `AssertionError` where a model or a pass is not as asserted, so that they
work under any test runner. Three modules:

- this one, which imports neither pytest nor hypothesis;
- `narrowpass_testing.strategies`, a hypothesis strategy that generates small valid models;
- `narrowpass_testing.fixtures`, fixtures for pytest. A ``conftest.py`` requests them with
  ``pytest_plugins = ["narrowpass_testing.fixtures"]``; importing the package registers none.
"""

from __future__ import annotations

from narrowpass_testing._compare import assert_equivalent, assert_signature_unchanged
from narrowpass_testing._feeds import random_feeds
from narrowpass_testing._passes import assert_idempotent, run_pass
from narrowpass_testing._text import model_from_text, model_to_text

__all__ = [
    "assert_equivalent",
    "assert_idempotent",
    "assert_signature_unchanged",
    "model_from_text",
    "model_to_text",
    "random_feeds",
    "run_pass",
]
