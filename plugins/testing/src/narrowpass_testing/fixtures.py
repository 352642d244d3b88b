"""Fixtures for pytest. Say ``pytest_plugins = ["narrowpass_testing.fixtures"]`` in a conftest."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from narrowpass.framework.context import Context
from narrowpass.framework.plugins import Registry, load_plugins


@pytest.fixture(scope="session")
def narrowpass_registry() -> Registry:
    """What the installed plugins register; read once."""
    return load_plugins().registry


@pytest.fixture
def narrowpass_context(narrowpass_registry: Registry) -> Context:
    """A fresh context for passes, without target and data, with the installed classifiers."""
    return Context(classifiers=narrowpass_registry.classifiers)


@pytest.fixture
def narrowpass_cli() -> Callable[..., Result]:
    """Run the command line within this process.

    A call takes the arguments and returns a result with ``exit_code``, ``stdout``, ``stderr`` and
    ``exception``.
    """
    from narrowpass.cli import app

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(app, [str(argument) for argument in arguments])

    return run
