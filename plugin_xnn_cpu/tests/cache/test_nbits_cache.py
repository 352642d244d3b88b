"""MatMulNBits in the weights cache, and with zero points that are floats.

Results are compared with float64: 1e-5 of the largest sum of magnitudes, as fp32 accumulation is.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest
from cache_kit import compiled, saved, weights
from contrib_kit import model_of
from onnx import helper

from narrowpass.errors import BundleError

RNG = np.random.default_rng(31)
CONSTANTS = ("b", "scales", "zeros")
ROWS, COLUMNS, OUTPUTS, BLOCK = 3, 72, 40, 32
BLOCKS = -(-COLUMNS // BLOCK)


def nbits_matmul(zeros, *, bits=4, dtype=np.float32):
    """Build a MatMulNBits with one kind of zero points; return it, and the matrix in float64."""
    integers = RNG.integers(0, 1 << bits, (OUTPUTS, BLOCKS * BLOCK)).astype(np.uint8)
    packed = integers if bits == 8 else integers[:, ::2] | integers[:, 1::2] << 4
    scales = (0.01 * RNG.random((OUTPUTS, BLOCKS)) + 0.01).astype(dtype)
    point = np.full((OUTPUTS, BLOCKS), float(1 << (bits - 1)))
    given = None
    if zeros == "floats":
        given = (RNG.random((OUTPUTS, BLOCKS)) * (1 << bits)).astype(dtype)
        point = given.astype(float)
    elif zeros == "packed":
        whole = RNG.integers(0, 1 << bits, (OUTPUTS, BLOCKS + BLOCKS % 2)).astype(np.uint8)
        point = whole[:, :BLOCKS].astype(float)
        given = whole[:, :BLOCKS] if bits == 8 else whole[:, ::2] | whole[:, 1::2] << 4
    inputs = {
        "a": np.zeros((ROWS, COLUMNS), dtype),
        "b": packed.reshape(OUTPUTS, BLOCKS, BLOCK * bits // 8),
        "scales": scales,
        "zeros": given,
    }
    sizes = {"K": COLUMNS, "N": OUTPUTS, "bits": bits, "block_size": BLOCK}
    dims = {"a": ["rows", COLUMNS]}
    model = model_of("MatMulNBits", inputs, ["y"], constants=CONSTANTS, dims=dims, **sizes)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", kind, ["rows", OUTPUTS]))
    apart = integers.reshape(OUTPUTS, BLOCKS, BLOCK) - point[..., None]
    wide = (apart * scales.astype(float)[..., None]).reshape(OUTPUTS, -1)[:, :COLUMNS]
    return model, wide.T


def check(program, matrix, rows, method="main", dtype=np.float32, share=1e-5):
    x = RNG.standard_normal((rows, COLUMNS)).astype(dtype)
    got = program.run({"a": x}, method)["y"].astype(float)
    most = (np.abs(x.astype(float)) @ np.abs(matrix)).max()
    np.testing.assert_allclose(got, x.astype(float) @ matrix, rtol=share, atol=share * most)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [None, "packed", "floats"])
def test_blocks_are_cached(tmp_path, zeros, bits):
    """Methods share one block, and the second load packs nothing."""
    model, matrix = nbits_matmul(zeros, bits=bits)
    bundle = saved(tmp_path / "b.narrow", one=model, two=model)
    for packs in (1, 0):
        program = compiled(bundle, tmp_path / "cache")
        found = weights(program)
        assert (found["packs"], found["hits"], found["private"]) == (packs, 2 - packs, {})
        for method in ("one", "two"):
            for rows in (1, 3, 9):
                check(program, matrix, rows, method)
        program.close()
        del program
        gc.collect()


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_zero_points_that_are_floats_are_packed(dtype):
    """The matrix is multiplied as it is stored: nothing is computed of it in a run."""
    from xnn_kit import compile_model

    model, matrix = nbits_matmul("floats", dtype=dtype)
    with compile_model(model) as program:
        kernels = [plan.kernel for plan in program.explain()]
        assert [kernel for kernel in kernels if "int4 (weights)" in kernel], kernels
        assert program.stats()["steps"] <= (1 if dtype == np.float32 else 3)
        share = 1e-5 if dtype == np.float32 else 1e-3
        for rows in (1, 4, 5, 20):
            check(program, matrix, rows, dtype=dtype, share=share)


def test_zero_points_with_other_content_have_another_name(tmp_path):
    first, _ = nbits_matmul("floats")
    second = type(first)()
    second.CopyFrom(first)
    (tensor,) = [t for t in second.graph.initializer if t.name == "zeros"]
    raw = np.frombuffer(tensor.raw_data, np.float32).copy()
    raw[5] += 1
    tensor.raw_data = raw.tobytes()
    bundle = saved(tmp_path / "b.narrow", one=first, two=second)
    assert weights(compiled(bundle, cache="memory"))["packs"] == 2


def test_a_changed_matrix_is_refused(tmp_path):
    model, _ = nbits_matmul("packed")
    bundle = saved(tmp_path / "b.narrow", main=model)
    info = bundle.manifest.tensors["b"]
    path = tmp_path / "b.narrow" / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[info.offset + 7] ^= 1
    path.write_bytes(data)
    with pytest.raises(BundleError, match=r"weights\.safetensors: tensor 'b' was changed"):
        compiled(bundle, tmp_path / "cache")
