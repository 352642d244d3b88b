"""Damaged models, manifests, headers, caches, texts and GGUF files: read, or refused clearly."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest
from fuzzing.mutation import mutated
from fuzzing.targets import TARGETS, inputs

from narrowpass.errors import NarrowpassError

pytestmark = [pytest.mark.once, pytest.mark.filterwarnings("ignore::RuntimeWarning")]

NEEDS = {"packed": "narrowpass_xnn_cpu", "method": "narrowpass_xnn_cpu", "gguf": "narrowpass_gguf"}
INPUTS = int(os.environ.get("NARROWPASS_FUZZ_INPUTS", "20000"))
"""How many inputs the long form tries for each target."""


def target_of(name, folder):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    inside = folder / "inside"
    inside.mkdir()
    return TARGETS[name](inside)


@pytest.mark.parametrize("name", TARGETS)
def test_whole_inputs_are_accepted(name, tmp_path):
    target = target_of(name, tmp_path)
    assert all(target.accepts(data) for data in target.seeds())


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs(name, tmp_path):
    target = target_of(name, tmp_path)
    refused = 0
    for seed, data in inputs(target, 0, 300):
        try:
            refused += not target.accepts(data)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert refused > 50


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_many_damaged_inputs(name, tmp_path):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    engine = "atheris" if importlib.util.find_spec("atheris") else "seeds"
    command = [sys.executable, "-W", "ignore", "-m", "fuzzing", name, str(INPUTS)]
    done = subprocess.run(
        [*command, "--engine", engine, "--out", str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    print(name, engine, done.stdout)
    assert json.loads(done.stdout)["refused"] > 0


def test_an_error_of_another_kind_is_a_defect(tmp_path, monkeypatch):
    target = target_of("pipeline", tmp_path)
    target.seeds()
    assert not target.accepts(b"{")
    monkeypatch.setattr(target, "read", lambda data: data[99])
    with pytest.raises(IndexError):
        target.accepts(b"{")


def test_an_error_without_a_message_is_a_defect(tmp_path, monkeypatch):
    target = target_of("pipeline", tmp_path)

    def silent(data):
        raise NarrowpassError("")

    monkeypatch.setattr(target, "read", silent)
    with pytest.raises(AssertionError, match="without a message"):
        target.accepts(b"x")


def test_damage_is_drawn_by_its_seed():
    one, other = (mutated(random.Random(4), [b"a line", b"another"]) for _ in range(2))
    assert one == other
    assert len({mutated(random.Random(seed), [b"a line"]) for seed in range(50)}) > 30
