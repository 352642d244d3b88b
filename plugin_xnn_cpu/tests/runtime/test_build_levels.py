"""Which levels of instruction sets a build compiles: `build_tools/instruction_sets.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from build_tools import instruction_sets as sets
from narrowpass_xnn_cpu.native import isa

pytestmark = pytest.mark.anywhere


@pytest.fixture(autouse=True)
def _on_x86(monkeypatch):
    monkeypatch.setattr(sets.platform, "machine", lambda: "x86_64")
    monkeypatch.delenv(sets.VARIABLE, raising=False)


def test_levels_are_those_of_the_backend():
    assert sets.LEVELS == isa.LEVELS


@pytest.mark.parametrize(
    ("wanted", "native", "built"),
    [
        ("", "sse4", "sse4"),
        ("native", "avx2", "sse4 avx2"),
        ("native", "avx512", "sse4 avx2 avx512"),
        ("native", "avx512vnni", "sse4 avx512 avx512vnni"),
        ("native,avx2", "avx512bf16", "sse4 avx2 avx512 avx512vnni avx512bf16"),
        ("avx2", "avx512amx", "sse4 avx2"),
        ("all", "avx2", "sse4 plain avx2 avx512 avx512vnni avx512bf16 avx512amx"),
    ],
)
def test_built_levels(wanted, native, built, monkeypatch):
    monkeypatch.setattr(sets, "native_level", lambda: native)
    monkeypatch.setenv(sets.VARIABLE, wanted)
    assert sets.built_levels() == set(built.split())


def test_an_unknown_level_is_refused(monkeypatch):
    monkeypatch.setenv(sets.VARIABLE, "native,avx3")
    with pytest.raises(SystemExit, match="'avx3' is none of native, all, sse4, plain, avx2"):
        sets.built_levels()


@pytest.mark.parametrize(
    ("defined", "level"),
    [
        ("", "sse4"),
        ("AVX2 FMA", "sse4"),
        ("AVX2 FMA F16C BMI2", "avx2"),
        ("AVX2 FMA F16C BMI2 AVX512F", "avx2"),
        ("AVX2 FMA F16C BMI2 AVX512F AVX512BW AVX512CD AVX512DQ AVX512VL", "avx512"),
        ("AVX2 FMA F16C BMI2 AVX512VNNI", "avx2"),
    ],
)
def test_the_native_level_is_what_the_compiler_defines(defined, level, monkeypatch, tmp_path):
    lines = "".join(f"echo '#define __{name}__ 1'\n" for name in defined.split())
    compiler = tmp_path / "cc"
    compiler.write_text(f"#!/bin/sh\n{lines}", encoding="utf-8")
    compiler.chmod(0o755)
    monkeypatch.setenv("CC", str(compiler))
    assert sets.native_level() == level


def test_what_a_template_is_compiled_for():
    assert [*sets.variants("attention/code.c")] == ["sse4", "plain", "avx2", "avx512"]
    assert [*sets.variants("attention/code.c", {"sse4", "avx2"})] == ["sse4", "avx2"]
    # It has no code of its own for SSE4.
    assert [*sets.variants("depthwise/fp32_code.c", {"sse4", "avx2"})] == ["plain", "avx2"]
    assert sets.variants("runtime/tape.c", {"sse4"}) == {"": []}


def test_the_base_is_optimized_where_it_runs():
    """In a wheel, and in a build on a processor that has nothing higher."""
    for levels in (sets.LEVELS, {"sse4"}):
        assert "-O1" not in sets.variants("attention/code.c", levels)["sse4"]
    assert "-O1" in sets.variants("attention/code.c", {"sse4", "avx2"})["sse4"]
    assert "-O1" not in sets.variants("attention/code.c", {"sse4", "avx2"})["avx2"]
