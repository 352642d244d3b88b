"""Compiled methods in the cache folder: what is restored computes the same bits, and only then."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import weakref
from functools import partial
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from cache_kit import INPUT, linear, network, path_of
from layer_kit import decoder, feeds_of
from masks_kit import Reference, follow
from oracle_kit import expected_outputs
from stored_kit import compiled_file, save, stored
from tolerances import ACCUMULATED

import narrowpass
from narrowpass import Bundle
from narrowpass.errors import BackendError
from narrowpass_planning.program import stored_methods
from narrowpass_planning.state.session import AppendingSession
from narrowpass_planning.weights.folder import prune
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.packer import PACKER

pytestmark = pytest.mark.anywhere


def assert_near(found: np.ndarray, known: np.ndarray) -> None:
    """Compare with an oracle: accumulators of 64 terms round by the largest of these."""
    bound = ACCUMULATED.relative * np.abs(known).max()
    np.testing.assert_allclose(found, known, rtol=0, atol=bound)


# What is restored


def test_a_restored_program_is_the_one_that_was_compiled(tmp_path, network_path, load, planned):
    """Bits, plans and counts are those of the program that was planned."""
    with load() as first, load() as again:
        wanted = first.run({"x": INPUT})["y"]
        (known,) = expected_outputs(network(), {"x": INPUT}).values()
        assert_near(wanted, known)
        np.testing.assert_array_equal(again.run({"x": INPUT})["y"], wanted)
        assert again.explain() == first.explain()
        assert again.signature() == first.signature()
        counted = again.stats()
        assert counted["steps"] == first.stats()["steps"]
        assert counted["weights"]["packs"] == 0
        steps = [time.kernel for time in first.profile({"x": INPUT})]
        assert [time.kernel for time in again.profile({"x": INPUT})] == steps
    assert planned == ["main"]


def test_a_program_is_restored_by_another_process(tmp_path, network_path, load):
    with load() as program:
        wanted = program.run({"x": INPUT})["y"]
    script = f"""
import numpy as np, narrowpass
from narrowpass_planning.program import method
method.compile_graph = None
cache = {str(tmp_path / "cache")!r}
program = narrowpass.load({str(network_path)!r}, "xnn-cpu", threads=2, cache_dir=cache)
x = np.random.default_rng(5).standard_normal((3, 48)).astype(np.float32)
np.save({str(tmp_path / "y.npy")!r}, program.run({{"x": x}})["y"])
"""
    subprocess.run([sys.executable, "-c", script], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), wanted)


RNG = np.random.default_rng(3)
NARROW = {
    "blocks of 4 bits": (
        "v = DequantizeLinear <axis = 0, block_size = 32> (w, s) y = MatMul(x, v)",
        RNG.integers(-8, 8, (128, 96)).astype(ml_dtypes.int4),
        np.repeat(scales := RNG.random((4, 96), np.float32), 32, 0),
        scales,
    ),
    "int8 per channel": (
        "v = DequantizeLinear <axis = 1> (w, s) y = MatMul(x, v)",
        RNG.integers(-128, 128, (128, 96)).astype(np.int8),
        scales := RNG.random(96, np.float32),
        scales,
    ),
    "float16": (
        "v = Cast <to = 1> (w) y = MatMul(x, v)",
        RNG.standard_normal((128, 96)).astype(np.float16),
        np.float32(1),
        np.zeros(1, np.float32),
    ),
}


@pytest.mark.parametrize("kind", NARROW)
def test_restored_programs_find_narrow_weights(tmp_path, load, planned, kind):
    """The oracle is numpy, in double; the bits are those of the program that was planned."""
    text, integers, factors, scales = NARROW[kind]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, 128] x) => (float[N, 96] y) {{ {text} }}"""
    )
    weight = ir.serde.serialize_tensor(ir.tensor(integers, name="w"))
    model.graph.initializer.extend([weight, onnx.numpy_helper.from_array(scales, "s")])
    save(tmp_path, main=model)
    x = np.random.default_rng(1).standard_normal((3, 128)).astype(np.float32)
    right = x.astype(np.float64) @ (integers.astype(np.float64) * factors)
    with load() as program, load() as again:
        for rows in (1, 3):
            found = program.run({"x": x[:rows]})["y"]
            assert_near(found, right[:rows])
            np.testing.assert_array_equal(again.run({"x": x[:rows]})["y"], found)
    assert planned == ["main"]


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("form", ["added", "computed"])
def test_a_restored_session_appends_as_onnx_says(tmp_path, load, planned, form, dtype):
    """Bits are those of the session that was planned; float32 follows onnx's evaluator."""
    model = decoder(form)
    save(tmp_path, main=model)
    rows = (9, 1, 1, 12, 1)
    with load() as program, program.session(dtype) as session:
        wanted = [session.run(feeds_of(form, n, session.length, n))["y"] for n in rows]
    assert len(planned) == 2  # with caches as feeds, and appended to
    with load() as program, program.session(dtype) as session:
        assert isinstance(session, AppendingSession)
        for n, known in zip(rows, wanted, strict=True):
            found = session.run(feeds_of(form, n, session.length, n))["y"]
            np.testing.assert_array_equal(found, known)
        session.reset()
        if dtype == "float32":
            follow(session, Reference(model), partial(feeds_of, form), rows)
    assert len(planned) == 2


def test_types_of_caches_are_stored_apart(tmp_path, load, planned):
    save(tmp_path, main=decoder())
    feeds = feeds_of("added", 5, 0, 1)
    wanted = {}
    for _ in range(2):
        with load() as program:
            for dtype in ("float32", "float16", "int8"):
                found = program.session(dtype).run(feeds)["y"]
                np.testing.assert_array_equal(found, wanted.setdefault(dtype, found))
    assert len(planned) == 4


# When methods are compiled


def test_a_method_of_a_decoder_waits_for_its_first_run(tmp_path, load, planned):
    """Once all are known to compile, what never runs is not even restored."""
    save(tmp_path, decode=decoder(), other=linear(np.eye(24, dtype=np.float32)))
    with load():
        assert sorted(planned) == ["decode", "other"]
    for path in stored(tmp_path):
        if b'"known"' in path.read_bytes():
            path.unlink()
    del planned[:]
    with load() as program:
        assert planned == []
        assert program.methods == ("decode", "other")
        x = np.ones((1, 24), np.float32)
        np.testing.assert_array_equal(program.run({"x": x}, "other")["y"], x)
        assert planned == ["other"]
        program.session().run(feeds_of("added", 1, 0, 0), "decode")
        assert planned == ["other", "decode"]
        assert {plan.method for plan in program.explain()} == {"decode", "other"}
        assert planned == ["other", "decode", "decode"]


def test_threads_that_run_a_method_first_compile_it_once(tmp_path, load, planned):
    save(tmp_path, main=decoder())
    with load() as program:
        feeds = feeds_of("added", 3, 0, 0) | {
            name: np.zeros((1, 2, 0, 6), np.float32) for name in ("past_k", "past_v")
        }
        wanted = program.run(feeds)["y"]
    compiled_file(tmp_path).unlink()
    del planned[:]
    with load() as program:
        found: list[np.ndarray] = []
        runs = [
            threading.Thread(target=lambda: found.append(program.run(feeds)["y"])) for _ in "abcd"
        ]
        for each in runs:
            each.start()
        for each in runs:
            each.join()
        assert planned == ["main"]
        assert len(found) == 4
        for each in found:
            np.testing.assert_array_equal(each, wanted)


def test_a_forked_child_runs_a_method_first(tmp_path, load):
    save(tmp_path, main=decoder())
    load().close()
    with load() as program:
        methods = program._open()
        with methods._lock.current():  # as another thread of the parent may hold it
            child = os.fork()
            if not child:
                code = 1
                try:
                    session = program.session()
                    session.run(feeds_of("added", 3, 0, 0))
                    methods["main"]
                    code = 0
                finally:
                    os._exit(code)
            assert os.waitpid(child, 0)[1] == 0


def test_a_program_without_state_keeps_no_models(network_path, load, monkeypatch):
    """Neither the one that has planned them, nor the one that has restored them."""
    opened = []
    load_unread = Bundle.load_unread

    def noted(*given):
        found = load_unread(*given)
        opened.append(weakref.ref(found))
        return found

    monkeypatch.setattr(Bundle, "load_unread", noted)
    for _ in range(2):
        with load() as program:
            gc.collect()
            assert opened.pop()() is None
            program.run({"x": INPUT})


def test_a_closed_program_compiles_nothing(tmp_path, load, planned):
    save(tmp_path, main=decoder())
    load().close()
    program = load()
    program.close()
    with pytest.raises(narrowpass.errors.UsageError, match="closed"):
        program.run({})
    with pytest.raises(narrowpass.errors.UsageError, match="closed"):
        program.explain()


UNKNOWN = """
<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
g (float[N, 24] x) => (float[N, 24] y) { y = com.microsoft.Sampling(x, w) }
"""


def test_errors_come_when_a_bundle_is_loaded(tmp_path, load):
    """Also in later processes: nothing is noted of what does not compile."""
    broken = onnx.parser.parse_model(UNKNOWN)
    matrix = np.eye(24, dtype=np.float32)
    broken.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "w"))
    save(tmp_path, decode=decoder(), other=broken)
    for _ in range(2):
        with pytest.raises(BackendError, match="Sampling"):
            load()


def test_values_to_keep_are_planned_for(tmp_path, network_path, load, planned):
    load().close()
    with load(keep=["h"]) as program:
        assert [*program.run({"x": INPUT}, outputs=["h"])] == ["h"]
    with pytest.raises(narrowpass.errors.UsageError, match="no method has a value 'nothing'"):
        load(keep=["nothing"])
    assert planned == ["main"] * 3


def test_a_method_is_planned_again_without_its_packed_weights(tmp_path, load, planned):
    """One of weights that are computed: they cannot be packed from the bundle alone."""
    text, matrix, *_ = NARROW["float16"]
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["" : 21]>
        g (float[N, 128] x) => (float[N, 96] y) {{ {text} }}"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "w"))
    save(tmp_path, main=model)
    x = np.random.default_rng(1).standard_normal((3, 128)).astype(np.float32)
    with load() as program:
        wanted = program.run({"x": x})["y"]
    assert_near(wanted, x.astype(np.float64) @ matrix.astype(np.float64))
    del program
    gc.collect()  # no program of this process shares them
    path_of(Bundle.load(tmp_path / "b.narrow"), tmp_path / "cache").unlink()
    with load() as program:
        np.testing.assert_array_equal(program.run({"x": x})["y"], wanted)
    assert planned == ["main", "main"]


def test_native_kernels_can_be_required_of_what_is_restored(tmp_path, network_path, load, planned):
    load().close()
    load(require_native=True).close()
    assert planned == ["main"]


# What is not restored


@pytest.mark.parametrize("cache", [False, "memory"])
def test_without_a_cache_folder_nothing_is_stored(tmp_path, network_path, load, cache):
    load(cache=cache).close()
    assert not (tmp_path / "cache").exists()


def test_models_in_memory_are_not_stored(tmp_path, planned):
    """Nothing says which files they would be of."""
    for _ in range(2):
        bundle = Bundle({"main": ir.from_proto(network())})
        with narrowpass.load(bundle, "xnn-cpu", cache_dir=tmp_path / "cache") as program:
            (known,) = expected_outputs(network(), {"x": INPUT}).values()
            assert_near(program.run({"x": INPUT})["y"], known)
    assert planned == ["main"] * 2
    assert not stored(tmp_path)


def test_a_bundle_without_weights_is_not_stored(tmp_path, load, planned):
    """It is planned as fast as it would be read."""
    text = """<ir_version: 9, opset_import: ["" : 18]>
        g (float[N, 4] x) => (float[N, 4] y) { y = Neg(x) }"""
    save(tmp_path, main=onnx.parser.parse_model(text))
    for _ in range(2):
        with load() as program:
            assert program.run({"x": np.ones((1, 4), np.float32)})["y"].sum() == -4
    assert planned == ["main"] * 2
    assert not stored(tmp_path)


def test_another_model_with_the_same_weights(tmp_path, load, planned):
    """Weights and their file are shared, methods are not."""
    matrix = np.random.default_rng(0).standard_normal((24, 24)).astype(np.float32)
    x = np.random.default_rng(1).standard_normal((2, 24)).astype(np.float32)
    plain, other = linear(matrix), linear(matrix)
    other.graph.node[0].attribute.append(onnx.helper.make_attribute("alpha", 2.0))
    for model, factor in ((plain, 1), (other, 2), (plain, 1), (other, 2)):
        path = save(tmp_path, main=model)
        with load() as program:
            wanted = factor * (x @ matrix.T)
            np.testing.assert_allclose(program.run({"x": x})["y"], wanted, rtol=1e-5, atol=1e-5)
        assert path.exists()
    assert planned == ["main", "main"]


def test_a_model_that_was_changed_after_loading(tmp_path, network_path, load, planned):
    """A bundle given as an object may be another one than its files."""
    load().close()
    loaded = Bundle.load(network_path)
    for node in loaded.methods["main"].graph:
        if node.op_type == "Relu":
            node.op_type = "Neg"
    found = narrowpass.load(loaded, "xnn-cpu", cache_dir=tmp_path / "cache").run({"x": INPUT})["y"]
    changed = network()
    changed.graph.node[1].op_type = "Neg"
    (known,) = expected_outputs(changed, {"x": INPUT}).values()
    assert_near(found, known)
    assert planned == ["main", "main"]


def test_options_and_processors_have_their_own_methods(
    tmp_path, network_path, load, planned, monkeypatch
):
    load().close()
    load("xnn-cpu{winograd=false}").close()
    assert planned == ["main"] * 2
    other = not target.current().reads_unpacked
    monkeypatch.setitem(target.OVERRIDES, "reads_unpacked", other)
    load().close()
    assert planned == ["main"] * 3
    load().close()
    assert planned == ["main"] * 3


def test_methods_of_other_code_are_planned_again(
    tmp_path, network_path, load, planned, monkeypatch
):
    load().close()
    before = {path: path.read_bytes() for path in stored(tmp_path)}
    for code in ("other", "another"):
        with monkeypatch.context() as patch:
            patch.setattr(stored_methods, "code_of", lambda packages, code=code: iter([code]))
            for _ in range(2):
                load().close()
    load().close()
    assert planned == ["main"] * 3, "each has files of its own, and finds them again"
    assert {path: path.read_bytes() for path in before} == before
    assert len(stored(tmp_path)) == 3 * len(before)


def test_methods_of_other_code_go_once_nobody_has_used_them_for_a_week(
    tmp_path, network_path, load, monkeypatch
):
    load().close()
    before = stored(tmp_path)
    other = tmp_path / "cache" / f"another{before[0].name}"
    other.write_bytes(b"of another bundle")
    for path in (*before, other):
        os.utime(path, (0, 0))
    monkeypatch.setattr(stored_methods, "code_of", lambda packages: iter(["other"]))
    load().close()
    assert not [path for path in before if path.exists()]
    assert other.exists()
    assert len(stored(tmp_path)) == len(before) + 1


def test_code_stays_what_it_was_when_the_process_began(tmp_path, monkeypatch):
    """It goes on with the modules that it has imported, whatever becomes of their files."""
    package = tmp_path / "np_replaced"
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    before = stored_methods.code_of((package.name,))
    (package / "__init__.py").write_text("replaced = True")
    assert stored_methods.code_of((package.name,)) == before
    stored_methods.code_of.cache_clear()
    assert stored_methods.code_of((package.name,)) != before


def test_code_is_known_by_each_of_its_files():
    lines = [*stored_methods.code_of(("narrowpass_planning", "narrowpass_xnn_cpu"))]
    for name in ("memory/arena.py", "lower/rules.py"):
        assert sum(f"/{name} " in line for line in lines) == 1
    assert any(".so " in line for line in lines)


def test_weights_that_are_gone_are_packed_again(tmp_path, network_path, load, planned):
    """A stored method has names of weights alone."""
    with load() as program:
        wanted = program.run({"x": INPUT})["y"]
    for path in (tmp_path / "cache").glob("*.weights*"):
        path.unlink()
    del program
    with load() as program:
        np.testing.assert_array_equal(program.run({"x": INPUT})["y"], wanted)
    with load() as program:
        np.testing.assert_array_equal(program.run({"x": INPUT})["y"], wanted)


def test_a_disk_that_is_full(tmp_path, network_path):
    """A limit of the size of files stops the write as a full disk does: in the middle."""
    cache = str(tmp_path / "cache")
    script = f"""
import resource, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[1] / "kits")!r})
import narrowpass
from cache_kit import INPUT
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
for _ in range(2):
    program = narrowpass.load({str(network_path)!r}, "xnn-cpu", cache_dir={cache!r})
    print(float(program.run({{"x": INPUT}})["y"].sum()))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = map(float, done.stdout.split())
    assert first == second
    assert len(stored(tmp_path)) <= 1  # signatures are short


def test_constants_of_a_damaged_bundle_are_not_stored(tmp_path, load, planned):
    """They are not packed, so that nothing compares them; once repaired, results are right."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[N, 100] x) => (float[N, 100] y) { y = Add(x, w) }"""
    )
    row = np.arange(100, dtype=np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(row, "w"))
    weights = save(tmp_path, main=model) / "weights.safetensors"
    right = weights.read_bytes()
    x = np.zeros((1, 100), np.float32)
    weights.write_bytes(right[:-4] + np.float32(7).tobytes())
    with load() as program:
        assert program.run({"x": x})["y"][0, -1] == 7
    weights.write_bytes(right)
    for _ in range(2):
        with load() as program:
            np.testing.assert_array_equal(program.run({"x": x})["y"][0], row)
    assert planned == ["main"] * 2


def test_what_cannot_be_stored_is_planned_in_each_process(tmp_path, load, planned):
    """Here a node that the host runs."""
    model = onnx.parser.parse_model(
        """<ir_version: 9, opset_import: ["" : 18]>
        g (float[N, 8, 8] x) => (float[N] z) { y = MatMul(x, w) z = Det(y) }"""
    )
    rng = np.random.default_rng(0)
    matrix, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((8, 8), (2, 8, 8)))
    model.graph.initializer.append(onnx.numpy_helper.from_array(matrix, "w"))
    save(tmp_path, main=model)
    for _ in range(2):
        with load() as program:
            found = program.run({"x": x})["z"]
            np.testing.assert_allclose(found, np.linalg.det(x @ matrix), rtol=1e-3)
    assert planned == ["main"] * 2


def test_methods_are_pruned_with_their_weights(tmp_path, network_path, load, planned):
    load().close()
    assert stored(tmp_path)
    prune(tmp_path / "cache", 1 << 30, PACKER)
    assert stored(tmp_path)
    prune(tmp_path / "cache", 0, PACKER)
    assert not stored(tmp_path)
    load().close()
    assert planned == ["main"] * 2
