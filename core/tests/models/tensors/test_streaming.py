"""Bytes of tensors of every kind: streamed, sampled, and written while somebody interrupts."""

from __future__ import annotations

import hashlib
import os
import threading

import numpy as np
import onnx_ir as ir
import pytest

from narrowpass_ir.errors import ModelError
from narrowpass_ir.tensors import safetensors, streaming
from narrowpass_ir.tensors.streaming import SAMPLED, default_threads, digest, sample


@pytest.mark.parametrize("large", [1 << 30, 1024], ids=["small", "large"])
def test_a_tensor_that_cannot_stream_is_read_whole(large, monkeypatch, plain_tensor):
    monkeypatch.setattr(streaming, "_LARGE", large)
    array = np.arange(5000, dtype=np.float32)
    taken = digest(plain_tensor(array), threading.Lock())
    assert taken.sha256 == hashlib.sha256(array.tobytes()).hexdigest()
    assert sample(plain_tensor(array)) is None  # it would cost as much as all


def test_samples_of_a_file_are_those_of_its_bytes(tmp_path):
    array = np.random.default_rng(0).standard_normal(5000).astype(np.float32)
    (tmp_path / "w.bin").write_bytes(array.tobytes())
    outside = ir.ExternalTensor(
        "w.bin", 0, array.nbytes, ir.DataType.FLOAT, shape=ir.Shape([5000]), name="w",
        base_dir=tmp_path,
    )  # fmt: skip
    taken = sample(outside)
    assert taken is not None
    assert len(taken) == SAMPLED
    assert taken == digest(ir.Tensor(array), threading.Lock()).sample == sample(ir.Tensor(array))


def test_strings_of_bits_are_not_sampled_but_read():
    """In memory each element has a byte, in a file half of one."""
    array = np.arange(9, dtype=np.uint8) % 16
    tensor = ir.Tensor(array, dtype=ir.DataType.UINT4)
    assert sample(tensor) is None
    taken = digest(tensor, threading.Lock())
    assert taken.sha256 == hashlib.sha256(bytes([0x10, 0x32, 0x54, 0x76, 0x08])).hexdigest()


@pytest.mark.parametrize("processors", [1, 3, 64, None])
def test_threads_are_few_where_the_system_does_not_say_which(processors, monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    assert default_threads() == min(4, processors or 1)


def test_an_interrupt_while_a_file_is_written(tmp_path, monkeypatch, plain_tensor):
    """Other threads stop at their next piece, and none is left."""
    entered, release = threading.Event(), threading.Event()

    class Slow(plain_tensor):
        def tofile(self, sink):
            entered.set()
            assert release.wait(60)
            sink.write(self.tobytes())

    def interrupt(futures, **options):
        assert entered.wait(60)
        release.set()
        raise KeyboardInterrupt

    monkeypatch.setattr(safetensors, "wait", interrupt)
    tensors = {f"t{index}": Slow(np.ones(64, np.float32)) for index in range(8)}
    layout = safetensors.Layout.of(tensors)
    before = set(threading.enumerate())
    with (tmp_path / "w").open("wb") as file, pytest.raises(KeyboardInterrupt):
        safetensors.write(file.fileno(), layout, tensors, threads=1)
    assert set(threading.enumerate()) == before
    assert (tmp_path / "w").stat().st_size < layout.size


def test_a_source_that_fails_names_the_tensor(plain_tensor):
    class Broken(plain_tensor):
        def tobytes(self):
            raise OSError("gone")

    with pytest.raises(ModelError, match="tensor 'p' cannot be read: gone"):
        digest(Broken(np.ones(3, np.float32)), threading.Lock())
