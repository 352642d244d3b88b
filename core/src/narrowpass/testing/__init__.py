"""What authors of plugins test with: models from text, passes run under checks, random feeds.

The helpers fail with `AssertionError` where a model or a pass is not as asserted, so that they
work under any test runner. Three modules:

- this one, which needs nothing but narrowpass;
- `narrowpass.testing.strategies`, a hypothesis strategy that makes small valid models;
- `narrowpass.testing.fixtures`, fixtures for pytest. A ``conftest.py`` that wants them says
  ``pytest_plugins = ["narrowpass.testing.fixtures"]``; they are not registered unasked.

The last two need the extra ``narrowpass[testing]``.
"""

from __future__ import annotations

from narrowpass.testing._compare import assert_equivalent, assert_signature_unchanged
from narrowpass.testing._feeds import random_feeds
from narrowpass.testing._passes import assert_idempotent, run_pass
from narrowpass.testing._text import model_from_text, model_to_text

__all__ = [
    "assert_equivalent",
    "assert_idempotent",
    "assert_signature_unchanged",
    "model_from_text",
    "model_to_text",
    "random_feeds",
    "run_pass",
]
