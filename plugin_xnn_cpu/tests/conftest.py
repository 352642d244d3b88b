"""What the tests of this folder share: where their kits are, and on which code kernels run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

for folder in ("kits", "fuzz", "kernels"):
    sys.path.insert(0, str(Path(__file__).with_name(folder)))


def pytest_collection_modifyitems(items):
    """Skip what the portable operators lack."""
    from narrowpass_xnn_cpu.native import library

    if library.unavailable() is None and library.is_portable():
        skip = pytest.mark.skip(reason="the portable operators lack it")
        for item in items:
            if item.get_closest_marker("xnnpack"):
                item.add_marker(skip)


@pytest.fixture(params=["plain", "avx2", "best"])
def fp32_code(request, monkeypatch):
    """Run a test with each of the codes that this processor has, whatever it would choose."""
    from narrowpass_xnn_cpu.native import kernels, target

    monkeypatch.setattr(kernels, "TARGET", request.param)
    monkeypatch.setitem(target.OVERRIDES, "fp32_lanes", 16)
    return request.param


@pytest.fixture
def bf16_emulated():
    """Have AVX512-BF16 executed during a test, by the processor where it can."""
    import bf16_kit

    library = bf16_kit.emulator()
    assert library.start() == 0
    yield library
    library.stop()


@pytest.fixture(params=["plain", "avx2", "avx512", "avx512bf16"])
def bf16_code(request, monkeypatch):
    """Run a test with each of the codes, whatever the processor would choose."""
    import bf16_kit

    from narrowpass_xnn_cpu.native import kernels

    monkeypatch.setattr(kernels, "TARGET", request.param)
    if request.param == "avx512" and bf16_kit.WITHOUT_AVX512:
        pytest.skip("this processor has no AVX-512")
    if request.param == "avx512bf16":
        request.getfixturevalue("bf16_emulated")
    return request.param


@pytest.fixture
def bundle(tmp_path):
    """Return a stored bundle of a small network."""
    import cache_kit

    return cache_kit.saved(tmp_path / "b.narrow", main=cache_kit.network())


@pytest.fixture
def cache(tmp_path, bundle):
    """Return the file of its packed weights, written by a first load."""
    import cache_kit

    cache_kit.compiled(bundle, tmp_path / "cache")
    return cache_kit.path_of(bundle, tmp_path / "cache")
