"""Calibrations that are interrupted, repeated, raced, or find rubbish in their files."""

from __future__ import annotations

import json
import logging
import multiprocessing
import os
import random
import signal
import time

import numpy as np
import onnx_ir as ir
import pytest
from calibration_kit import (
    CALIBRATORS,
    NAMES,
    calibrate_and_die,
    calibrate_on_event,
    data,
    network,
    samples,
)

from narrowpass import Samples, load_model, save_model
from narrowpass.errors import UsageError
from narrowpass_int8_sym.calibration import CalibrationCache, Calibrator, Range, calibrate
from narrowpass_int8_sym.calibration import cache as cache_module
from narrowpass_int8_sym.calibration.cache import default_folder
from narrowpass_int8_sym.calibration.digest import DataDigest, model_digest
from narrowpass_ir.files import temporary

RIGHT = {
    name: calibrate(network(), NAMES, samples(data()), None, name, symmetric=False)
    for name in CALIBRATORS
}


class Interrupt(Exception):  # noqa: N818
    """What stops a calibration in the middle."""


def run(folder, calibrator="l2", stop=0, every=2, **changed):
    """Calibrate; return the ranges and the reported progress."""
    reported = []

    def progress(done, total):
        reported.append(done)
        if done == stop:
            raise Interrupt

    given = {
        "model": network(),
        "names": NAMES,
        "samples": samples(data()),
        "target": None,
        "calibrator": calibrator,
        "symmetric": False,
        **changed,
    }
    cache = CalibrationCache(folder, every=every)
    try:
        return calibrate(**given, progress=progress, cache=cache), reported
    except Interrupt:
        return None, reported


def files(folder):
    return sorted(path for path in folder.iterdir())


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_the_second_time_nothing_is_run(tmp_path, calibrator):
    assert run(tmp_path, calibrator)[0] == RIGHT[calibrator]
    again, reported = run(tmp_path, calibrator)
    assert (again, reported) == (RIGHT[calibrator], [])
    assert [each.histogram for each in again.values()] == [
        each.histogram for each in RIGHT[calibrator].values()
    ]
    assert len(files(tmp_path)) == 1


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_an_interrupted_run_goes_on(tmp_path, calibrator):
    total = 10 * Calibrator(calibrator).rounds
    for stop in range(1, total + 1):
        folder = tmp_path / str(stop)
        assert run(folder, calibrator, stop, every=3)[0] is None
        ranges, reported = run(folder, calibrator, every=3)
        assert ranges == RIGHT[calibrator]
        done = stop - 1  # the state of the last sample was not written yet
        kept = done // 10 * 10 + done % 10 // 3 * 3
        # A state is also written at the end of a round, but for the last one.
        assert reported[0] == max(kept, 1) if kept else reported[0] == 1
        assert reported[-1] == total


@pytest.mark.parametrize("calibrator", CALIBRATORS)
def test_a_killed_process_is_gone_on_with(tmp_path, calibrator):
    after = 7 if Calibrator(calibrator).rounds == 1 else 17
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=calibrate_and_die, args=(str(tmp_path), calibrator, after))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL
    ranges, reported = run(tmp_path, calibrator)
    assert ranges == RIGHT[calibrator]
    assert reported[0] == after - 1
    assert not list(tmp_path.glob("*.tmp"))


def test_killed_again_and_again(tmp_path):
    for stop in range(2, 20, 2):
        assert run(tmp_path, "entropy", stop + 1, every=1)[0] is None
    ranges, reported = run(tmp_path, "entropy", every=1)
    assert ranges == RIGHT["entropy"]
    assert reported[0] == 18


def test_more_values_are_added(tmp_path):
    some, _ = run(tmp_path, names=["h", "y"])
    assert some == {name: RIGHT["l2"][name] for name in ("h", "y")}
    ranges, reported = run(tmp_path)
    assert ranges == RIGHT["l2"]
    assert len(reported) == 20
    assert run(tmp_path) == (RIGHT["l2"], [])


def test_a_state_of_other_values_is_not_used(tmp_path):
    assert run(tmp_path, stop=15)[0] is None
    some, reported = run(tmp_path, names=["h"])
    assert some == {"h": RIGHT["l2"]["h"]}
    assert reported == list(range(1, 21))


@pytest.mark.parametrize(
    "changed",
    [
        {"model": network(seed=1)},
        {"samples": samples(data(seed=2))},
        {"samples": samples(data()[::-1])},
        {"limit": 9},
        {"symmetric": True},
        {"calibrator": "percentile"},
        {"calibrator": Calibrator("l2", bins=512)},
        {"calibrator": Calibrator("l2", outliers=0)},
    ],
    ids=["model", "data", "order", "limit", "symmetric", "calibrator", "bins", "outliers"],
)
def test_what_a_calibration_goes_by(tmp_path, changed):
    run(tmp_path)
    ranges, reported = run(tmp_path, **changed)
    assert len(reported) == reported[-1]
    assert ranges == run(tmp_path / "else", **changed)[0]
    assert len(files(tmp_path)) == 3  # two, and the folder


def test_options_of_others_do_not_matter(tmp_path):
    run(tmp_path)
    chosen = Calibrator("l2", percentile=50, averaging=0.5)
    assert run(tmp_path, chosen) == (RIGHT["l2"], [])


def test_digests(tmp_path):
    """Equal for equal models, wherever their weights are; not for others."""
    model = network(40)
    first = model_digest(model)
    assert model_digest(network(40)) == first
    assert model_digest(ir.from_proto(ir.to_proto(model))) == first
    save_model(model, tmp_path / "model.onnx", inline_limit=0)
    assert model_digest(load_model(tmp_path / "model.onnx")) == first
    model.doc_string = "changed"
    assert model_digest(model) == first
    weight = model.graph.initializers["w"].const_value.numpy().copy()
    weight[3, 4] = np.nextafter(weight[3, 4], np.float32(9))
    model.graph.initializers["w"].const_value = ir.tensor(weight, name="w")
    assert model_digest(model) != first
    model = network(40)
    model.graph[1].op_type = "Elu"
    assert model_digest(model) != first


def test_digests_of_data():
    def digest(*items):
        digest = DataDigest()
        for item in items:
            digest.add(item)
        return digest.hexdigest()

    a, b = np.arange(6, dtype=np.float32), np.arange(6, dtype=np.int64)
    different = [
        digest(),
        digest({}),
        digest({"a": a}),
        digest({"b": a}),
        digest({"a": b}),
        digest({"a": a.reshape(2, 3)}),
        digest({"a": a.reshape(2, 3).T}),
        digest({"a": a}, {"a": a}),
        digest({"a": a, "b": b}),
        digest({"a": a}, {"b": b}),
        digest({"a": np.array(["ab", "c"])}),
        digest({"a": np.array(["a", "bc"])}),
        digest({"a": np.array(["a", "bc"], object)}),
    ]
    assert len(set(different)) == len(different)
    assert digest({"a": a, "b": b}) == digest({"b": b, "a": a})
    assert digest({"a": a.reshape(2, 3).T}) == digest({"a": a.reshape(2, 3).T.copy()})


# Rubbish


def ignored(folder, caplog, right=RIGHT["l2"]):
    caplog.clear()
    with caplog.at_level(logging.WARNING, "narrowpass.int8-sym"):
        ranges, reported = run(folder)
    assert ranges == right
    return bool(caplog.records), reported


@pytest.mark.parametrize("stop", [0, 15])
def test_any_damage_is_noticed(tmp_path, caplog, stop):
    """Bytes are flipped, and ends cut off, at random places: never an error or a wrong range."""
    run(tmp_path, stop=stop)
    (path,) = files(tmp_path)
    good = path.read_bytes()
    choose = random.Random(1)
    places = [*range(0, 120, 8), *range(len(good) - 120, len(good), 8)]
    places += [choose.randrange(len(good)) for _ in range(20)]
    warned = 0
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << choose.randrange(8)
        path.write_bytes(bad)
        warned += ignored(tmp_path, caplog)[0]
        path.write_bytes(good[:place])
        assert ignored(tmp_path, caplog)[0]
    # What is left are fields of the archive that nobody reads, such as times.
    assert warned > len(places) / 2


@pytest.mark.parametrize("content", [b"", b"[]", b"PK\x03\x04", b"\x93NUMPY\x01\x00", bytes(999)])
def test_a_foreign_file(tmp_path, caplog, content):
    run(tmp_path)
    (path,) = files(tmp_path)
    path.write_bytes(content)
    assert ignored(tmp_path, caplog) == (True, list(range(1, 21)))
    assert run(tmp_path) == (RIGHT["l2"], [])


@pytest.mark.parametrize(
    "header",
    [
        b"[]",
        b"{}",
        b"\xff",
        b"1",
        b'{"format": "narrowpass calibration 1", "key": "KEY"}',
        b'{"format": "narrowpass calibration 2", "key": "KEY", "ranges": {}}',
        b'{"format": "narrowpass calibration 1", "key": "other", "ranges": {}}',
        b'{"format": "narrowpass calibration 1", "key": "KEY", "ranges": []}',
        b'{"format": "narrowpass calibration 1", "key": "KEY", "ranges": {"h": [1.0, 2.0]}}',
        b'{"format": "narrowpass calibration 1", "key": "KEY", "ranges": {"h": [NaN, 2.0]}}',
        b'{"format": "narrowpass calibration 1", "key": "KEY", "ranges": {"h": ["a", 2.0]}}',
        b'{"format": "narrowpass calibration 1", "key": "KEY", "ranges": {"h": 1}}',
        b'{"format": "narrowpass calibration 1", "key": "KEY", "ranges": {"h": [-1.0, 1.0, {}]}}',
        b'{"format": "narrowpass calibration 1", "key": "KEY", "ranges": {}, "partial": 1}',
        b'{"format": "narrowpass calibration 1", "key": "KEY", "ranges": {}, "partial": []}',
    ],
)
def test_a_header_of_another_format(tmp_path, caplog, header):
    run(tmp_path)
    (path,) = files(tmp_path)
    key = path.name.removesuffix(cache_module.SUFFIX).encode()
    with path.open("wb") as file:
        np.savez(file, header=np.frombuffer(header.replace(b"KEY", key), np.uint8))
    assert ignored(tmp_path, caplog) == (True, list(range(1, 21)))


@pytest.mark.parametrize(
    ("extremes", "counts"),
    [
        ([[1.0, -1.0]], [[0] * 2049]),
        ([[np.nan, 1.0]], [[0] * 2049]),
        ([[-np.inf, 1.0]], [[0] * 2049]),
        ([[-1.0, 1.0]], [[0] * 2048]),
        ([[-1.0, 1.0]], [[-1] * 2049]),
    ],
)
def test_a_state_that_cannot_be(tmp_path, caplog, extremes, counts):
    run(tmp_path, names=["h"])
    (path,) = files(tmp_path)
    entry = CalibrationCache(tmp_path).entry(path.name.removesuffix(cache_module.SUFFIX))
    entry.ranges = {}
    path.unlink()
    entry.save(
        {}, cache_module.PartialCalibration(("h",), 1, 5, np.array(extremes), np.array(counts))
    )
    ranges, reported = run(tmp_path, names=["h"])
    assert ranges == {"h": RIGHT["l2"]["h"]}
    assert reported == list(range(1, 21))
    assert "state of a calibration is ignored" in caplog.text


@pytest.mark.parametrize(
    "changed",
    [
        {"names": [1]},
        {"names": 3},
        {"round": "0"},
        {"round": -1},
        {"done": 2.5},
        {"done": -1},
        {"extremes": np.zeros((1, 2), np.float32)},
        {"extremes": np.zeros((2, 2))},
        {"extremes": np.zeros((1, 3))},
        {"counts": np.zeros((1, 4), np.int32)},
        {"counts": np.zeros((2, 4), np.int64)},
        {"counts": np.zeros((1, 4, 1), np.int64)},
    ],
    ids=str,
)
def test_a_state_of_other_fields_is_no_state(tmp_path, caplog, changed):
    """The ranges beside it are not used either: one file is right as a whole, or ignored."""
    fields = {"names": ["h"], "round": 1, "done": 5}
    arrays = {"extremes": np.array([[-1.0, 1.0]]), "counts": np.ones((1, 4), np.int64)}
    for wrong in ({}, changed):
        header = {
            "format": cache_module.FORMAT,
            "key": "key",
            "ranges": {"a": [0.0, 1.0]},
            "partial": {name: wrong.get(name, value) for name, value in fields.items()},
        }
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        with (tmp_path / f"key{cache_module.SUFFIX}").open("wb") as file:
            np.savez(file, header=text, **{name: wrong.get(name, arrays[name]) for name in arrays})
        entry = CalibrationCache(tmp_path).entry("key")
        assert entry.ranges == ({} if wrong else {"a": Range(0, 1)})
        assert (entry.partial is None) == bool(wrong)
        assert ("is no calibration, so it is ignored" in caplog.text) == bool(wrong)


def test_a_folder_in_place_of_the_file_is_ignored(tmp_path, caplog):
    (tmp_path / f"key{cache_module.SUFFIX}").mkdir()
    entry = CalibrationCache(tmp_path).entry("key")
    assert (entry.ranges, entry.partial) == ({}, None)
    assert "cannot be read, so it is ignored: " in caplog.text
    caplog.clear()
    for _ in range(2):  # what cannot be written is said once
        entry.save({"a": Range(0, 1)}, None)
    assert sum("is not kept" in record.message for record in caplog.records) == 1


def test_a_folder_that_cannot_be_written_to(tmp_path, caplog):
    (tmp_path / "file").write_text("no folder")
    with caplog.at_level(logging.WARNING, "narrowpass.int8-sym"):
        assert run(tmp_path / "file")[0] == RIGHT["l2"]
    assert sum("not kept" in record.message for record in caplog.records) == 1


# Where, and by how many


def test_the_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path))
    assert default_folder() == CalibrationCache().folder == tmp_path / "calibration"
    monkeypatch.delenv("NARROWPASS_CACHE_DIR")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "user"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_folder().is_relative_to(tmp_path)
    assert default_folder().parent.name == "narrowpass"
    with pytest.raises(UsageError):
        CalibrationCache(tmp_path, every=0)


def test_several_processes_at_once(tmp_path):
    context = multiprocessing.get_context("spawn")
    ready, results = context.Event(), context.Queue()
    processes = [
        context.Process(target=calibrate_on_event, args=(str(tmp_path), ready, results))
        for _ in range(3)
    ]
    for process in processes:
        process.start()
    ready.set()
    found = [results.get(timeout=120) for _ in processes]
    for process in processes:
        process.join()
    assert found == [RIGHT["l2"]] * 3
    assert run(tmp_path) == (RIGHT["l2"], [])


def test_ranges_of_others_are_kept(tmp_path):
    cache = CalibrationCache(tmp_path)
    one, two = cache.entry("key"), cache.entry("key")
    one.save({"a": Range(0, 1)}, None)
    two.save({"b": Range(0, 2.5)}, None)
    assert cache.entry("key").ranges == {"a": Range(0, 1), "b": Range(0, 2.5)}


def test_leftovers_of_dead_processes_go(tmp_path):
    old, new = tmp_path / ".narrowpass-1.tmp", tmp_path / ".narrowpass-2.tmp"
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (time.time() - 9999,) * 2)
    run(tmp_path)
    assert not old.exists()
    assert new.exists()


def test_a_file_that_is_being_written_stays_whatever_the_clock_says(tmp_path):
    """The clock of the one that sweeps is an hour ahead, or behind."""
    with temporary(tmp_path / "other") as (file, name):
        for age in (9999, -9999):
            file.write(b"half")
            file.flush()
            os.utime(name, (time.time() - age,) * 2)
            CalibrationCache(tmp_path).entry(f"key{age}").save({"a": Range(0, 1)}, None)
            assert name.exists()
    left = tmp_path / ".narrowpass-1.tmp"
    left.touch()
    os.utime(left, (time.time() + 9999,) * 2)
    CalibrationCache(tmp_path).entry("key").save({"a": Range(0, 1)}, None)
    assert not left.exists()


def test_data_is_hashed_without_being_kept(tmp_path):
    """A folder of files and the same feeds in memory are the same data."""
    for index, feeds in enumerate(data()):
        np.savez(tmp_path / f"{index:02}.npz", **feeds)
    cache = tmp_path / "cache"
    assert run(cache)[0] == RIGHT["l2"]
    assert run(cache, samples=Samples.parse(str(tmp_path))) == (RIGHT["l2"], [])
