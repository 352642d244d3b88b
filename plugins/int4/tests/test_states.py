"""Values between layers: in memory, on disk beyond a limit, and the same in both."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from int4_kit import build, constants, floats
from test_data import gated, samples

import narrowpass
import narrowpass_int4.data.observation as observation
from narrowpass.errors import PassError
from narrowpass_int4.data import states
from narrowpass_int4.data.hessian import Hessian
from narrowpass_int4.data.states import States


def values(number):
    """Return arrays of the types that numpy has, and has not, without elements among them."""
    return {
        "f": floats(3, 5) + number,
        "b": floats(7).astype(ml_dtypes.bfloat16),
        "i": np.array(number, np.int64),
        "flag": np.array([True, False]),
        "none": np.empty((0, 4), np.float16),
        "turned": floats(4, 6).T,
    }


@pytest.mark.parametrize("limit", [0, 300, 1 << 20])
def test_what_is_appended_is_drained(limit, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    right = [values(number) for number in range(4)]
    kept = States(limit)
    for state in right:
        kept.append(state)
    files = {0: 4, 300: 3, 1 << 20: 0}[limit]
    assert len(list(tmp_path.rglob("*.bin"))) == files
    assert sum(array.nbytes for array in right[0].values()) <= 300
    assert len(kept) == 4
    assert all(map(same, kept.each("b"), [state["b"] for state in right]))
    assert list(kept.first()) == list(right[0])
    again = States(limit)
    for got, state in zip(kept.drain(), right, strict=True):
        assert list(got) == list(state)
        assert all(same(got[name], state[name]) for name in state)
        again.append(got)
    assert len(kept) == 0
    assert kept.first() == {}
    kept.append(right[0])  # there is space again
    assert len(list(tmp_path.rglob("*.bin"))) == files + (limit == 0)
    kept.close()
    again.close()
    assert not list(tmp_path.iterdir())


def same(got, right):
    return (
        got.dtype == right.dtype and got.shape == right.shape and got.tobytes() == right.tobytes()
    )


def test_sequences_are_refused_and_texts_stay_in_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = States(0)
    with pytest.raises(PassError, match="value 's' is no tensor"):
        kept.append({"s": [floats(2)]})
    kept.append({"t": np.array(["a", "b"], object)})
    assert kept.first()["t"].tolist() == ["a", "b"]
    assert not list(tmp_path.iterdir())


def test_a_full_disk(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    kept = States(0)
    kept.append(values(0))
    (folder,) = tmp_path.iterdir()
    (folder / "1.bin").mkdir()  # stands for an error of the file system
    with pytest.raises(PassError, match="set TMPDIR to a folder with more space"):
        kept.append(values(1))
    kept.close()


def test_the_limit():
    assert 0 < states.memory_limit() <= states.MOST


def test_values_on_disk_change_nothing(monkeypatch):
    proto, data = gated(), samples(3)
    text = "int4{method=gptq,head=int4}"
    right = constants(ir.to_proto(build(proto, text, data).methods["main"]))
    monkeypatch.setattr(observation, "memory_limit", lambda: 0)
    got = constants(ir.to_proto(build(proto, text, data).methods["main"]))
    assert list(got) == list(right)
    assert all(same(got[name], right[name]) for name in right)


def test_samples_may_reuse_their_arrays():
    """Values of a sample stay until later segments, and who reads samples may overwrite them."""
    proto, data = gated(), samples(3)
    buffer = np.empty_like(data[0]["x"])

    def reused():
        for feeds in data:
            buffer[:] = feeds["x"]
            yield {"x": buffer}

    text = "int4{method=gptq,head=int4}"
    right = constants(ir.to_proto(build(proto, text, data).methods["main"]))
    bundle = narrowpass.build(ir.from_proto(proto), text, target="reference", calibration=reused)
    got = constants(ir.to_proto(bundle.methods["main"]))
    assert all(same(got[name], right[name]) for name in right)


def test_many_samples_are_one_matmul(monkeypatch):
    """However many are collected, and threads share them, the matrices are those of all columns."""
    parts = [(floats(5, 8), floats(5, 8)) for _ in range(7)]
    x, f = (np.concatenate(each).astype(np.float64) for each in zip(*parts, strict=True))
    for at_once, threads in ((1, 2), (100, 1), (100, 3), (1 << 22, 2), (1 << 22, 4)):
        monkeypatch.setattr("narrowpass_int4.data.hessian.AT_ONCE", at_once)
        monkeypatch.setattr("narrowpass_int4.data.hessian.workers", lambda threads=threads: threads)
        hessian = Hessian(8, "x", compared=True)
        for columns, compared in parts:
            hessian.add(columns, "a sample", compared)
        # float32 accumulators of 35 terms: 35 · 2⁻²⁴ of the sum of magnitudes.
        np.testing.assert_allclose(
            hessian.matrix, x.T @ x, atol=3e-6 * (np.abs(x).T @ np.abs(x)).max()
        )
        np.testing.assert_allclose(
            hessian.cross, x.T @ f, atol=3e-6 * (np.abs(x).T @ np.abs(f)).max()
        )
        np.testing.assert_allclose(hessian.magnitude, np.abs(x).sum(0), rtol=1e-6)
