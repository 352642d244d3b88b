"""Test kit for authors of plugins: models from text, passes run under checks, random models.

The helpers fail with `AssertionError` where a model or a pass is not as asserted, so that they
work under any test runner. The modules:

- this one, which imports neither pytest nor hypothesis. Its names are imported on first use, as it
  is the entry module of the plugin that registers ``narrowpass reduce``;
- `narrowpass_testing.random_models`: random models of ONNX's operators, and oracles for them;
- `narrowpass_testing.strategies`, a hypothesis strategy that generates small valid models;
- `narrowpass_testing.fixtures`, fixtures for pytest. A ``conftest.py`` requests them with
  ``pytest_plugins = ["narrowpass_testing.fixtures"]``; importing the package registers none.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from narrowpass import hookimpl

if TYPE_CHECKING:
    import click

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
    "narrowpass_commands",
    "random_feeds",
    "run_pass",
]

_MODULE_OF = {
    "assert_equivalent": "_compare",
    "assert_idempotent": "_passes",
    "assert_signature_unchanged": "_compare",
    "model_from_text": "_text",
    "model_to_text": "_text",
    "random_feeds": "_feeds",
    "run_pass": "_passes",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use."""
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """Return the public names too, which are imported on first use."""
    return sorted({*globals(), *__all__})


@hookimpl
def narrowpass_commands() -> list[click.Command]:
    """Register the command."""
    from narrowpass_testing.reduce import reduce

    return [reduce]
