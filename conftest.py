"""Settings that all tests of the repository share."""

from __future__ import annotations

import gc
import importlib.util
import logging
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

# What tests of several distributions share.
sys.path.insert(0, str(Path(__file__).parent / "tests" / "kits"))

# A loaded machine is no reason to fail; and CI must see the same examples on every run.
settings.register_profile("repository", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("repository")


def pytest_configure() -> None:
    """Refuse to run without the peers that NARROWPASS_TEST_PEERS names, as CI does.

    So `pytest.importorskip("onnxruntime")` skips only where the peer is absent by intent.
    """
    for name in os.environ.get("NARROWPASS_TEST_PEERS", "").split():
        if importlib.util.find_spec(name) is None:
            raise pytest.UsageError(f"NARROWPASS_TEST_PEERS names {name}, which is not installed")


ROOT = Path(__file__).resolve().parent
MEASURED = tuple(
    ROOT / name
    for name in (
        "core/tests",
        "plugin_int8_sym/tests/calibration",
        "plugin_xnn_cpu/tests/cache",
        "plugins/analysis/tests",
        "plugins/auto/tests",
        "plugins/demo/tests",
        "plugins/onnxruntime/tests/session",
        "plugins/planning/tests",
        "plugins/reference/tests",
        "plugins/report/tests",
        "plugins/testing/tests",
    )
)
"""Tests that reach what pyproject.toml wants to be covered; measuring others takes minutes."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Measure the coverage of some tests, and run a part of the cases of those that have many.

    `NARROWPASS_TEST_CASES` cases of each test at most, spread evenly over all it has.
    """
    for item in items:
        if not any(item.path.is_relative_to(folder) for folder in MEASURED):
            item.add_marker("no_cover")
    most = int(os.environ.get("NARROWPASS_TEST_CASES", "0"))
    if not most:
        return
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {case for found in cases.values() for case in found[:: max(1, -(-len(found) // most))]}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


@pytest.fixture(scope="session", autouse=True)
def _cache_of_its_own(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep packed weights of tests out of the user's cache directory."""
    os.environ["NARROWPASS_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture(scope="session", autouse=True)
def _numpy_is_known_to_hypothesis() -> None:
    """Have Hypothesis register numpy's generator before anything is frozen.

    At its first example it looks for what refers to it; version 6.100 does not see what is frozen.
    """
    given(st.none())(lambda _: None)()


@pytest.fixture(scope="module", autouse=True)
def _what_was_there_before_is_not_collected(_numpy_is_known_to_hypothesis: None) -> None:
    """Let collections look at what the tests of one module leave, and not at 500,000 objects.

    Tests that ask for collections took six times as long behind thousands of others.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logging_stays_enabled() -> Iterator[None]:
    """Fail the test that disables logging, and not those behind it that look for warnings."""
    yield
    left, logging.root.manager.disable = logging.root.manager.disable, logging.NOTSET
    if left != logging.NOTSET:
        pytest.fail("logging was left disabled")


@pytest.fixture(autouse=True)
def _numbers_of_its_own(request: pytest.FixtureRequest) -> None:
    """Seed numpy's random generators before each test: order and workers do not matter."""
    state = np.random.default_rng(zlib.crc32(request.node.nodeid.encode())).bit_generator.state
    kits = [module for name, module in list(sys.modules.items()) if name.endswith("_kit")]
    for module in (request.module, *kits):
        numbers = getattr(module, "RNG", None)
        if isinstance(numbers, np.random.Generator):
            numbers.bit_generator.state = state
