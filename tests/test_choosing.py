"""`benchmarks/choosing`: its figures, its pictures, and models that crash or hang."""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.once
FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def part(monkeypatch):
    """Import modules of the benchmark, which is a script and no package."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(FOLDER / "choosing"))
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(FOLDER) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def form(seconds=None, *, within=True, **more):
    timed = {} if seconds is None else {"seconds": [seconds] * 3}
    figures = {"nodes": 5, "bytes": 100, "error": 0.0, "shown": "rel 0", "build": 1.0}
    counted = {"counters": {"evaluations": 4}, "sample": 0.005}
    return {**figures, **counted, "within": within, **timed, **more}


def row(name, **forms):
    facts = {"model": name, "limit": "rel:1e-2", "samples": 5}
    return {**facts, "forms": {"fp32": form(4.0), **forms}}


def test_figures_are_shares_of_the_model_as_it_was(part):
    figures = part("figures")
    rows = [
        row("one", auto=form(1.0, build=0.5), bf16=form(2.0), int8=form(None, within=False)),
        row("two", auto=form(None, same=True), bf16=form(8.0), int8=form(2.0)),
        row("three", auto=form(16.0, within=False)),
        {"model": "four", "failure": "no file"},
    ]
    assert [figures.ratio(each, "auto") for each in rows] == [0.25, 1.0, 4.0, None]
    assert figures.best_fixed(rows[0]) == ("bf16", 0.5)
    assert figures.best_fixed(rows[1]) == ("int8", 0.5)
    assert figures.best_fixed(rows[2]) == ("fp32", 1.0)
    table = list(figures.lines(rows))
    assert len({line.count("|") for line in table}) == 1
    assert "**4.00**" in table[4]
    assert "**rel 0**" in table[4]
    text = "\n".join(figures.summary(rows))
    assert "4 models, 3 run as fp32, 3 built" in text
    assert "fresh samples: 2 of 3" in text
    assert "Slower than fp32: 1." in text
    assert "Speed-up over fp32, geometric mean: 1.00." in text  # 4, 1 and 1/4
    assert "best fixed type of ours within the limit: 0.63." in text  # 2, 1/2 and 1/4
    assert "40 passes of fp32 over its samples (median)" in text  # of 5 samples of 5 ms
    assert "30 at most for 1 of 3." in text
    assert figures.figure(rows).count("<rect") == 3


def test_peers_count_with_their_best_form_within_the_limit(part):
    figures = part("figures")
    peers = {"onnxruntime": form(3.0), "onnxruntime static": form(None, within=False)}
    rows = [
        row("one", auto=form(1.0), **peers),
        row("two", auto=form(2.0), onnxruntime=form(8.0), **{"onnxruntime dynamic": form(4.0)}),
        row("three", auto=form(1.0), onnxruntime={"failure": "no operator", "within": False}),
    ]
    assert figures.best_of_peer(rows[0], "onnxruntime") == ("onnxruntime", 0.75)
    assert figures.best_of_peer(rows[1], "onnxruntime") == ("onnxruntime dynamic", 1.0)
    assert figures.best_of_peer(rows[2], "onnxruntime") is None
    table = list(figures.lines(rows))
    assert "1.00 dynamic" in table[3]
    text = "\n".join(figures.summary(rows))
    # 3 and 2, of two models; the other runs nothing.
    assert "best form within the limit, float32 among them (2 models): 2.45" in text
    assert "onnxruntime static: 1 of 1 built and run, 0 within; median of its builds 1 s." in text


def test_pictures_have_edges_and_flat_areas(part):
    pictures = part("pictures")
    for shape in ((1, 3, 64, 80), (2, 64, 80, 3)):
        found = pictures.picture(shape, np.random.default_rng(0))
        assert found.shape == shape
        assert found.dtype == np.float32
        assert abs(found.mean()) < 1e-4
        assert found.std() == pytest.approx(1.0, abs=1e-4)
        # Neighbours of noise are independent; of a picture most are alike.
        sides = found if shape[3] == 3 else found.transpose(0, 2, 3, 1)
        steps = np.abs(np.diff(sides, axis=2))
        assert np.median(steps) < 0.2
        assert steps.max() > 1.0
    assert not pictures.is_picture(np.zeros((1, 80, 3000), np.float32))
    assert not pictures.is_picture(np.zeros((1, 8, 64, 64), np.float32))
    assert not pictures.is_picture(np.zeros((1, 3, 64, 64), np.int64))


def crash():
    os._exit(7)


def hang():
    time.sleep(600)


def fail():
    raise ValueError("no such file\nwith a second line")


@pytest.mark.parametrize(
    ("function", "text"),
    [
        (crash, "its process ended with 7"),
        (hang, "not done after 1 s"),
        (fail, "ValueError: no such file"),
    ],
)
def test_what_crashes_or_hangs_is_an_error(part, function, text, monkeypatch):
    processes = part("processes")
    context = processes.multiprocessing.get_context("fork")  # a spawned one cannot import this file
    monkeypatch.setattr(processes.multiprocessing, "get_context", lambda _: context)
    limit = 1.0 if function is hang else 60.0
    with pytest.raises(processes.ApartError) as caught:
        processes.run_apart(function, (), limit)
    assert str(caught.value) == text
    assert processes.run_apart(max, (2, 3), 60.0) == 3
