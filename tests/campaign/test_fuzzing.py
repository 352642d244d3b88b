"""Damaged models, manifests, headers, caches, texts and GGUF files: read, or refused clearly."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from fuzzing.__main__ import NOTED
from fuzzing.bounds import BASE
from fuzzing.gguf_file import changed_file, small_parts
from fuzzing.mutation import mutated
from fuzzing.structure import changed_document, changed_model, changed_tokens
from fuzzing.target import inputs
from fuzzing.targets import TARGETS, model

from narrowpass.errors import NarrowpassError

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

NEEDS = {
    "packed": ("narrowpass_xnn_cpu",),
    "method": ("narrowpass_xnn_cpu",),
    "compiled": ("narrowpass_xnn_cpu", "narrowpass_reference", "onnxruntime"),
    "calibration": ("narrowpass_int8_sym",),
    "tuning": ("narrowpass_auto",),
    "times": ("narrowpass_auto",),
    "note": ("narrowpass_onnxruntime",),
    "gguf": ("narrowpass_gguf",),
    "huggingface": ("narrowpass_huggingface",),
    "tokenizer": ("narrowpass_generate",),
}
INPUTS = int(os.environ.get("NARROWPASS_FUZZ_INPUTS", "20000"))
"""How many inputs the long form tries for each target, led by coverage."""
ALL = int(os.environ.get("NARROWPASS_FUZZ_ALL", "200000"))
"""How many it tries for all targets together, drawn by their seeds."""


def skip_without(name):
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)


def target_of(name, folder):
    skip_without(name)
    inside = folder / "inside"
    inside.mkdir()
    return TARGETS[name](inside)


@pytest.mark.parametrize("name", TARGETS)
def test_whole_inputs_are_accepted(name, tmp_path):
    target = target_of(name, tmp_path)
    found = [target.accepts(data) for data in target.seeds()]
    # A few operators have no implementation in some operator sets, or without onnxruntime.
    assert sum(found) >= len(found) * (0.9 if name == "compiled" else 1)


@pytest.mark.parametrize("name", TARGETS)
def test_damaged_inputs(name, tmp_path):
    target = target_of(name, tmp_path)
    refused = 0
    for seed, data in inputs(target, target.seeds(), 0, 300):
        try:
            refused += not target.accepts(data)
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    assert refused > 50


def fuzzing(*arguments):
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "fuzzing", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_many_damaged_inputs(name, tmp_path):
    skip_without(name)
    engine = "atheris" if importlib.util.find_spec("atheris") else "seeds"
    done = fuzzing(name, INPUTS, "--engine", engine, "--out", tmp_path)
    assert done.returncode == 0, done.stderr[-5000:]
    print(name, engine, done.stdout)
    assert json.loads(done.stdout)["refused"] > 0


@pytest.mark.long
def test_all_targets(tmp_path):
    for name in NEEDS:
        skip_without(name)
    done = fuzzing("all", ALL, "--jobs", os.cpu_count() or 1, "--out", tmp_path)
    print(done.stdout)
    assert done.returncode == 0, done.stderr[-5000:]


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_DATA holds on Linux alone")
TAKING = """
import sys; from pathlib import Path
from fuzzing import __main__ as main, target, targets
size, taken = int(sys.argv[2]), int(sys.argv[3])
target.inputs = lambda *_: iter([(5, bytes(size))])
targets.Texts.accepts = lambda self, data: len(data) != size or bool(bytearray(taken))
main.seeded('pipeline', 5, 1, Path(sys.argv[1]))
"""


@ON_LINUX
@pytest.mark.parametrize("size", [10, 1 << 20])
def test_an_input_may_take_memory_by_its_size(tmp_path, size):
    """One that allocates a bit more than it may ends the campaign."""
    folder = tmp_path / "inside"
    folder.mkdir()
    most = BASE + TARGETS["pipeline"].multiple * size
    for taken, well in ((most - (8 << 20), True), (most + (1 << 20), False)):
        done = subprocess.run(
            [sys.executable, "-c", TAKING, *map(str, (folder, size, taken))],
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert (done.returncode == 0) == well, done.stderr
        assert well or "MemoryError" in done.stderr
        assert well or "target pipeline, seed 5" in done.stderr


@ON_LINUX
@pytest.mark.parametrize("name", ["manifest", "safetensors", "pipeline"])
def test_long_inputs_take_no_more_than_they_may(name, tmp_path):
    done = fuzzing(name, "--long", 20_000, "--out", tmp_path)
    assert done.returncode == 0, done.stderr[-5000:]
    assert json.loads(done.stdout)["inputs"] > 10


@pytest.mark.long
@pytest.mark.parametrize("name", TARGETS)
def test_longer_inputs_take_no_more_than_they_may(name, tmp_path):
    skip_without(name)
    done = fuzzing(name, "--long", 200_000, "--out", tmp_path)
    print(name, done.stdout)
    assert done.returncode == 0, done.stderr[-5000:]


def test_the_input_that_ends_a_process_is_named(tmp_path):
    """A crash says nothing itself."""
    command = (
        "import os; from pathlib import Path; from fuzzing import __main__ as main, targets;"
        "targets.Texts.read = lambda self, data: os.abort() if data == b'xx' else None;"
        "from fuzzing import target; target.inputs = lambda *_: iter([(6, b'x'), (7, b'xx')]);"
        f"main.seeded('pipeline', 6, 2, Path({str(tmp_path / 'inside')!r}))"
    )
    (tmp_path / "inside").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)},
        capture_output=True,
        check=False,
    )
    assert done.returncode == -signal.SIGABRT
    assert (tmp_path / NOTED).read_text().strip() == "7"


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


def test_changed_models_can_be_parsed_and_differ():
    whole = model().SerializeToString()
    changed = [changed_model(random.Random(seed), whole) for seed in range(200)]
    assert changed[7] == changed_model(random.Random(7), whole)
    for data in changed:
        onnx.ModelProto.FromString(data)
    assert len(set(changed)) > 150


def test_changed_documents_can_be_parsed_and_differ():
    whole = json.dumps({"a": [1, {"b": "x"}], "c": 5, "d": []}).encode()
    changed = [changed_document(random.Random(seed), whole) for seed in range(200)]
    assert len({json.dumps(json.loads(data)) for data in changed}) > 100
    for seed in range(20_000):  # no list becomes an element of itself
        changed_document(random.Random(seed), whole)


def test_changed_texts_have_words_of_others():
    change = changed_tokens(["cse", "int8-sym"])
    texts = [change(random.Random(seed), b"fold,fp16{dtype=bfloat16}") for seed in range(100)]
    assert any(b"int8-sym" in text for text in texts)
    assert len(set(texts)) > 70


def test_changed_gguf_files_begin_as_such_files_and_differ():
    whole = small_parts().write()
    changed = {changed_file(random.Random(seed), whole) for seed in range(100)}
    assert len(changed) > 80
    assert all(data.startswith(b"GGUF") for data in changed)
