"""The fixtures, as the conftest of a plugin asks for them."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

CONFTEST = 'pytest_plugins = ["narrowpass_testing.fixtures"]'


def test_fixtures(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(
        """
        from narrowpass import Context, Registry

        def test_registry(narrowpass_registry):
            assert isinstance(narrowpass_registry, Registry)
            assert "reference" in narrowpass_registry.backends

        def test_context(narrowpass_context):
            assert isinstance(narrowpass_context, Context)
            narrowpass_context.counters["x"] += 1

        def test_context_is_fresh(narrowpass_context):
            assert not narrowpass_context.counters

        def test_cli(narrowpass_cli):
            result = narrowpass_cli("plugins", "--json")
            assert result.exit_code == 0, result.stderr
            assert narrowpass_cli("no-such-command").exit_code == 2
        """
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=4)


def test_fixtures_are_not_registered_unasked(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_registry(narrowpass_registry): pass")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(errors=1)
