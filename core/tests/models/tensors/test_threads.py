"""Work on threads that the system refuses to start."""

from __future__ import annotations

import hashlib
import threading
from collections import Counter

import numpy as np
import onnx_ir as ir
import pytest

from narrowpass_ir.tensors import safetensors
from narrowpass_ir.tensors.threads import ThreadPool


@pytest.fixture
def allow(monkeypatch):
    """Return a function that lets so many threads start, and no more."""
    start = threading.Thread.start

    def allow(count: int) -> None:
        def limited(thread: threading.Thread) -> None:
            nonlocal count
            if count <= 0:
                raise RuntimeError("can't start new thread")
            count -= 1
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", limited)

    return allow


@pytest.mark.parametrize("count", [0, 1, 3])
def test_all_work_is_done_once(allow, count):
    allow(count)
    done: Counter[int] = Counter()

    def work(number: int) -> int:
        done[number] += 1
        return number * number

    with ThreadPool(4) as pool:
        assert list(pool.map(work, range(50))) == [number * number for number in range(50)]
        assert pool.submit(work, number=50).result() == 2500
    assert done == Counter(range(51))


@pytest.mark.parametrize("count", [0, 1])
def test_an_error_is_in_the_future(allow, count):
    allow(count)
    with ThreadPool(2) as pool:
        futures = [pool.submit(int, text) for text in ("1", "one", "2")]
        assert isinstance(futures[1].exception(), ValueError)
        assert [futures[0].result(), futures[2].result()] == [1, 2]


def test_a_thread_that_starts_later_does_not_work_again(allow):
    done = []
    with ThreadPool(1) as pool:
        allow(0)
        assert pool.submit(done.append, 1).done()
        allow(1)
        pool.submit(done.append, 2).result()
    assert done == [1, 2]


def test_a_file_is_written_and_synced_without_a_thread(allow, tmp_path):
    tensors = {f"t{i}": ir.tensor(np.full((3, i + 1), i, np.float32)) for i in range(5)}
    layout = safetensors.Layout.of(tensors)
    allow(0)
    with (tmp_path / "w").open("wb") as file:
        hashes = safetensors.write(file.fileno(), layout, tensors, threads=3)
    for name, tensor in tensors.items():
        assert hashes[name] == hashlib.sha256(tensor.tobytes()).hexdigest()
    assert (tmp_path / "w").stat().st_size == layout.size
