"""Every form in which tools write matrices of few bits: what runs, how it is packed, its results.

Each case builds a model and the matrix that it stands for, in float64 by numpy. Rows of float32 are
compared at 1e-5 of the largest sum of magnitudes, for fp32 accumulation in another order, and with
onnxruntime
where it runs the form. Rows that are quantized in blocks are off by half a step in
each element at most: max|block| / 254 times the magnitudes of the block's weights.
"""

from __future__ import annotations

import gc
import itertools

import ml_dtypes
import numpy as np
import pytest
from cache_kit import compiled, saved, weights
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import compile_model

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import kernels

RNG = np.random.default_rng(23)
KINDS = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4}
KINDS |= {"int8": TensorProto.INT8, "uint8": TensorProto.UINT8}
OFFSETS = {"int4": -8, "uint4": 0, "int8": -128, "uint8": 0}
BITS = {"int4": 4, "uint4": 4, "int8": 8, "uint8": 8}


def initializer(name, array, kind=None):
    if kind is None:
        return numpy_helper.from_array(array, name)
    dtype = helper.tensor_dtype_to_np_dtype(KINDS[kind])
    return numpy_helper.from_array(array.astype(dtype), name)


def wrap(nodes, columns, outputs, initializers, opset=21, last="y", dtype=TensorProto.FLOAT):
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", dtype, ["rows", columns])],
        [helper.make_tensor_value_info(last, dtype, ["rows", outputs])],
        initializers,
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def packed_bits(numbers, bits):
    """Pack integers along the last axis, low bits first."""
    single = np.unpackbits(numbers[..., None].astype(np.uint8), axis=-1, bitorder="little")
    single = single[..., :bits].reshape(*numbers.shape[:-1], -1)
    return np.packbits(single, axis=-1, bitorder="little")


def store_as_float16(nodes, initializers):
    """Store the scales ``s`` as float16, behind a Cast to float32."""
    (at,) = [at for at, tensor in enumerate(initializers) if tensor.name == "s"]
    array = numpy_helper.to_array(initializers[at])
    initializers[at] = numpy_helper.from_array(array.astype(np.float16), "stored")
    nodes.insert(0, helper.make_node("Cast", ["stored"], ["s"], to=TensorProto.FLOAT))


def nbits(
    bits=4,
    block=32,
    zeros=None,
    columns=96,
    outputs=40,
    bias=False,
    level=0,
    order=None,
    cast=False,
):
    """Build MatMulNBits; return it and the matrix [K, N]."""
    blocks = -(-columns // block)
    numbers = RNG.integers(0, 1 << bits, (outputs, blocks * block))
    scales = RNG.uniform(0.01, 0.02, (outputs, blocks)).astype(np.float32)
    scales = scales.astype(np.float16).astype(np.float32) if cast else scales
    points = np.full((outputs, blocks), float(1 << (bits - 1)))
    parts = {
        "b": packed_bits(numbers.reshape(outputs, blocks, block), bits),
        "s": scales,
    }
    names = ["x", "b", "s", "", "", ""]
    if zeros == "floats":
        points = RNG.uniform(0, 1 << bits, (outputs, blocks)).astype(np.float32).astype(float)
        parts["z"] = points.astype(np.float32)
    elif zeros == "packed":
        whole = RNG.integers(0, 1 << bits, (outputs, blocks))
        points, parts["z"] = whole.astype(float), packed_bits(whole, bits)
    if zeros:
        names[3] = "z"
    groups = np.arange(columns) // block
    if order is not None:
        groups = groups[order]
        parts["g"], names[4] = groups.astype(np.int32), "g"
    added = RNG.standard_normal(outputs).astype(np.float32) if bias else np.zeros(outputs)
    if bias:
        parts["c"], names[5] = added, "c"
    while not names[-1]:
        names.pop()
    sizes = {"K": columns, "N": outputs, "bits": bits, "block_size": block}
    node = helper.make_node(
        "MatMulNBits", names, ["y"], domain="com.microsoft", accuracy_level=level, **sizes
    )
    nodes, initializers = [node], [initializer(name, array) for name, array in parts.items()]
    if cast:
        store_as_float16(nodes, initializers)
    wide = (numbers[:, :columns] - points[:, groups]) * scales.astype(float)[:, groups]
    return wrap(nodes, columns, outputs, initializers), wide.T, added


def qdq(
    kind="int4",
    axis=0,
    block=32,
    zeros=False,
    half=False,
    gemm=False,
    columns=96,
    outputs=40,
    level=0,
    cast=False,
):
    """Build DequantizeLinear of a matrix and a MatMul or Gemm; `block` 0 is per channel."""
    bits, low = BITS[kind], OFFSETS[kind]
    numbers = RNG.integers(low, low + (1 << bits), (outputs, columns))
    blocks = -(-columns // block) if block else 1
    dtype = np.float16 if half else np.float32
    scales = RNG.uniform(0.01, 0.02, (outputs, blocks)).astype(dtype)
    scales = scales.astype(np.float16).astype(np.float32) if cast else scales
    points = RNG.integers(low, low + (1 << bits), (outputs, blocks)) if zeros else 0
    of = np.arange(columns) // (block or columns)
    wide = numbers - (points[:, of] if zeros else 0)
    wide = (wide * scales.astype(float)[:, of]).T

    def lying(array):
        array = array.T if axis == 0 else array
        return array if block else array.reshape(-1)

    parts = [initializer("q", numbers.T if axis == 0 else numbers, kind)]
    parts.append(initializer("s", lying(scales)))
    names = ["q", "s"]
    if zeros:
        parts.append(initializer("z", lying(points), kind))
        names.append("z")
    named = {"axis": axis if block else 1 - axis}
    if block:
        named["block_size"] = block
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], **named)]
    last = "w"
    if half:
        nodes.append(helper.make_node("Cast", [last], ["f"], to=TensorProto.FLOAT))
        last = "f"
    if gemm:
        nodes.append(helper.make_node("Gemm", ["x", last], ["y"], transB=axis))
    else:
        if axis == 1:
            nodes.append(helper.make_node("Transpose", [last], ["t"], perm=[1, 0]))
            last = "t"
        nodes.append(helper.make_node("MatMul", ["x", last], ["y"]))
    if level == 4:
        nodes[-1].metadata_props.add(key="narrowpass.activations", value="dynamic")
    if cast:
        store_as_float16(nodes, parts)
    return wrap(nodes, columns, outputs, parts), wide, np.zeros(outputs)


NBITS = {
    f"MatMulNBits {bits} bits, zero points {zeros}": (nbits, {"bits": bits, "zeros": zeros})
    for bits, zeros in itertools.product((2, 3, 4, 8), (None, "packed", "floats"))
}
NBITS |= {
    f"MatMulNBits block {block}": (nbits, {"block": block, "columns": 300, "zeros": "packed"})
    for block in (16, 32, 64, 128, 256)
}
NBITS |= {
    "MatMulNBits bias": (nbits, {"bias": True}),
    "MatMulNBits g_idx": (nbits, {"order": np.random.default_rng(3).permutation(96)}),
    "MatMulNBits g_idx in order": (nbits, {"order": np.arange(96)}),
}
QDQ = {
    f"{kind} axis {axis} block {block} zeros {zeros} {'Gemm' if gemm else 'MatMul'}": (
        qdq,
        {"kind": kind, "axis": axis, "block": block, "zeros": zeros, "gemm": gemm},
    )
    for kind, axis, block, zeros, gemm in itertools.product(
        KINDS, (0, 1), (0, 32), (False, True), (False, True)
    )
}
QDQ |= {
    f"{kind} axis {axis} block {block} float16 scales": (
        qdq,
        {"kind": kind, "axis": axis, "block": block, "half": True},
    )
    for kind, axis, block in itertools.product(KINDS, (0, 1), (0, 16))
}
QDQ |= {
    f"{kind} per channel, {columns} inputs": (
        qdq,
        {"kind": kind, "block": 0, "columns": columns, "zeros": True},
    )
    for kind, columns in itertools.product(("int4", "uint4"), (1, 31, 33, 256, 320))
}
CAST = {
    f"MatMulNBits, cast scales, zero points {zeros}": (nbits, {"zeros": zeros, "cast": True})
    for zeros in (None, "packed", "floats")
}
CAST |= {
    f"{kind} axis {axis} block 32 zeros {zeros}, cast scales": (
        qdq,
        {"kind": kind, "axis": axis, "zeros": zeros, "cast": True},
    )
    for kind, axis, zeros in itertools.product(("int4", "uint4"), (0, 1), (False, True))
}
FORMS = NBITS | QDQ | CAST


def rows_of(rows, columns):
    return RNG.standard_normal((rows, columns)).astype(np.float32)


def expected(x, matrix, added):
    return x.astype(float) @ matrix + added, float((np.abs(x).astype(float) @ np.abs(matrix)).max())


def ort(model, x):
    """What onnxruntime computes; None where it does not run the form."""
    onnxruntime = pytest.importorskip("onnxruntime")
    try:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return session.run(None, {"x": x})[0]
    except Exception as error:  # it has no one class for what it refuses
        if not any(word in str(error) for word in ("NOT_IMPLEMENTED", "FAIL", "INVALID", "g_idx")):
            raise
        return None


@pytest.mark.parametrize("name", FORMS)
def test_form(name):
    build, given = FORMS[name]
    model, matrix, added = build(**given)
    with compile_model(model) as program:
        (plan,) = [p for p in program.explain() if p.op_type in ("MatMul", "Gemm")]
        bits = 8 if "int8" in name or "8 bits" in name else 2 if "2 bits" in name else 4
        assert f"int{bits} (weights)" in plan.kernel, plan
        assert "float32" not in plan.kernel
        for rows in (1, 3, 9):
            x = rows_of(rows, matrix.shape[0])
            right, most = expected(x, matrix, added)
            (got,) = program.run({"x": x}).values()
            np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * most)
            other = ort(model, x)
            if other is not None:
                share = 1e-3 if "float16" in name else 1e-5
                np.testing.assert_allclose(got, other, rtol=share, atol=share * most)


@pytest.mark.parametrize("name", CAST)
def test_cast_scales_are_packed_as_float16(tmp_path, name):
    """Two bytes less for each scale of 40 outputs, filled up to 2 panels of 32, and 3 blocks."""
    build, given = FORMS[name]
    sizes = []
    for cast in (False, True):
        model, *_ = build(**{**given, "cast": cast})
        program = compiled(saved(tmp_path / f"{cast}.narrow", one=model), tmp_path / "cache")
        sizes.append(weights(program)["methods"]["one"]["packed_bytes"])
        program.close()
    assert sizes[0] - sizes[1] == 2 * 64 * 3


def bound(x, matrix, block):
    """Half a step of each block's rows, times magnitudes of weights, beside fp32 accumulation."""
    rows, columns = x.shape
    count = -(-columns // block)
    wide = np.zeros((rows, count * block))
    wide[:, :columns] = np.abs(x)
    most = wide.reshape(rows, count, block).max(-1)
    weights = np.zeros((count * block, matrix.shape[1]))
    weights[:columns] = np.abs(matrix)
    each = most @ weights.reshape(count, block, -1).sum(1)
    return each / 254 * (1 + 1e-4) + 1e-5 * (np.abs(x).astype(float) @ np.abs(matrix)).max()


@pytest.mark.parametrize("target", ["best", "avx512vnni", "avx512", "avx2", "plain"])
@pytest.mark.parametrize("zeros", [None, "packed", "floats"])
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_rows_in_blocks_of_int8(bits, zeros, target):
    """With an accuracy level of 4; the same numbers, whatever the instruction set."""
    for block, columns, outputs in ((16, 16, 1), (32, 80, 33), (128, 300, 70)):
        model, matrix, added = nbits(bits, block, zeros, columns, outputs, bias=True, level=4)
        before = kernels.TARGET
        kernels.TARGET = target
        try:
            with compile_model(model, threads=2) as program:
                (plan,) = [p for p in program.explain() if p.op_type == "MatMul"]
                assert "rows in blocks of int8" in plan.kernel
                for rows in range(1, 10):
                    x = rows_of(rows, columns)
                    (got,) = program.run({"x": x}).values()
                    right, _ = expected(x, matrix, added)
                    assert (np.abs(got - right) <= bound(x, matrix, block)).all()
        finally:
            kernels.TARGET = before


@pytest.mark.parametrize("rows", [1, 7])
def test_a_block_that_is_not_finite(rows):
    """Its row is NaN, and others are not touched."""
    model, matrix, added = nbits(level=4)
    x = rows_of(rows + 1, 96)
    right, most = expected(x[1:], matrix, added)
    with compile_model(model) as program:
        for number in (np.nan, np.inf, -np.inf):
            x[0, 40] = number
            (got,) = program.run({"x": x}).values()
            assert np.isnan(got[0]).all()
            assert np.abs(got[1:] - right).max() <= 0.02 * most
        x[:, :] = 0
        assert not program.run({"x": x})["y"].any()


def test_a_factor_of_the_matrix():
    """Gemm's alpha scales the scales: the matrix is packed as it is stored."""
    model, matrix, _ = qdq(gemm=True)
    model.graph.node[-1].attribute.append(helper.make_attribute("alpha", 0.5))
    x = rows_of(5, 96)
    with compile_model(model) as program:
        kernel = [p.kernel for p in program.explain() if p.op_type == "Gemm"]
        assert "int4 (weights)" in kernel[0]
        (got,) = program.run({"x": x}).values()
    right, most = expected(x, matrix / 2, 0)
    np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5 * most)


@pytest.mark.parametrize("level", [0, 4])
@pytest.mark.parametrize("function", ["Relu", "Sigmoid"])
def test_epilogues(function, level):
    """A residual and an activation are part of the matmul: x · sigmoid(x) is SiLU."""
    model, matrix, added = qdq(level=level)
    nodes = model.graph.node
    nodes[-1].output[0] = "p"
    nodes.append(helper.make_node("Add", ["p", "r"], ["a"]))
    nodes.append(helper.make_node(function, ["a"], ["b" if function == "Sigmoid" else "y"]))
    if function == "Sigmoid":
        nodes.append(helper.make_node("Mul", ["a", "b"], ["y"]))
    model.graph.input.append(
        helper.make_tensor_value_info("r", TensorProto.FLOAT, ["rows", matrix.shape[1]])
    )
    with compile_model(model) as program:
        for rows in (1, 9):
            x, r = rows_of(rows, 96), rows_of(rows, matrix.shape[1])
            (got,) = program.run({"x": x, "r": r}).values()
            right, most = expected(x, matrix, added)
            right = right + r
            share = 0.02 if level else 1e-5
            right = np.maximum(right, 0) if function == "Relu" else right / (1 + np.exp(-right))
            np.testing.assert_allclose(got, right, rtol=share, atol=share * most)
        assert program.stats()["steps"] == 1


def test_threads_and_targets_do_not_change_blocks():
    """The same bits with one thread and with two, from one row to many."""
    for level in (0, 4):
        model, _, _ = nbits(block=32, columns=256, outputs=2000, zeros="packed", level=level)
        with compile_model(model, threads=1) as one, compile_model(model, threads=2) as two:
            for rows in (1, 4, 5, 250):
                x = rows_of(rows, 256)
                assert np.array_equal(one.run({"x": x})["y"], two.run({"x": x})["y"])


def embedding(kind, block, zeros, half=False):
    """Build DequantizeLinear of a table [70, 64] and a Gather; return it and the table."""
    low, dtype = OFFSETS[kind], np.float16 if half else np.float32
    numbers = RNG.integers(low, low + (1 << BITS[kind]), (70, 64))
    blocks = 64 // block if block else 1
    scales = RNG.uniform(0.01, 0.02, (70, blocks)).astype(dtype)
    points = RNG.integers(low, low + (1 << BITS[kind]), (70, blocks)) if zeros else 0
    each = 64 // blocks
    wide = numbers - (np.repeat(points, each, 1) if zeros else 0)
    wide = wide * np.repeat(scales.astype(float), each, 1)
    parts = [initializer("q", numbers, kind)]
    parts.append(initializer("s", scales if block else scales[:, 0]))
    names = ["q", "s"]
    if zeros:
        parts.append(initializer("z", points if block else points[:, 0], kind))
        names.append("z")
    named = {"axis": 1, "block_size": block} if block else {"axis": 0}
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], **named)]
    nodes += [helper.make_node("Cast", ["w"], ["f"], to=TensorProto.FLOAT)] if half else []
    nodes.append(helper.make_node("Gather", ["f" if half else "w", "i"], ["y"]))
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("i", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 64])],
        parts,
    )
    opset = helper.make_opsetid("", 21)
    return helper.make_model(graph, opset_imports=[opset], ir_version=10), wide


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("block", [0, 16, 32])
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_embeddings(kind, block, zeros, half):
    """Rows are gathered from what is packed: integers and scales, each rounded once."""
    model, table = embedding(kind, block, zeros, half)
    with compile_model(model) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type == "Gather"]
        assert kernel == f"gather int{BITS[kind]}"
        at = np.array([0, 69, 31, 32, -1, -70, 5, 5])
        (got,) = program.run({"i": at}).values()
        np.testing.assert_allclose(got, table[at], rtol=1e-6, atol=0)
        with pytest.raises(BackendError):
            program.run({"i": np.array([70])})
        assert program.run({"i": np.zeros(0, np.int64)})["y"].shape == (0, 64)


def test_a_tied_embedding_is_packed_once(tmp_path):
    """The LM head reads what rows are gathered from; so does another method, and a second load."""
    model, table = embedding("uint4", 32, True)
    nodes = model.graph.node
    nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
    nodes.append(helper.make_node("MatMul", ["y", "t"], ["l"]))
    model.graph.output.append(helper.make_tensor_value_info("l", TensorProto.FLOAT, ["n", 70]))
    bundle = saved(tmp_path / "b.narrow", one=model, two=model)
    for packs in (1, 0):
        program = compiled(bundle, tmp_path / "cache")
        found = weights(program)
        assert (found["packs"], found["private"]) == (packs, {})
        for method in ("one", "two"):
            got = program.run({"i": np.arange(6)}, method)
            right, most = expected(got["y"], table.T, 0)
            np.testing.assert_allclose(got["l"], right, rtol=1e-5, atol=1e-5 * most)
        program.close()
        del program
        gc.collect()


@pytest.mark.parametrize("name", ["int4 axis 0 block 32 zeros True MatMul", "MatMulNBits g_idx"])
@pytest.mark.parametrize("level", [0, 4])
def test_the_cache_does_not_change_a_bit(tmp_path, name, level):
    build, given = FORMS[name]
    model, matrix, _ = build(**given, level=level)
    bundle = saved(tmp_path / "b.narrow", one=model)
    x = {rows: rows_of(rows, matrix.shape[0]) for rows in (1, 9)}
    with compile_model(model) as program:
        right = {rows: program.run({"x": given})["y"] for rows, given in x.items()}
    for packs in (1, 0):
        program = compiled(bundle, tmp_path / "cache")
        assert weights(program)["packs"] == packs
        for rows, given in x.items():
            np.testing.assert_array_equal(program.run({"x": given}, "one")["y"], right[rows])
        program.close()
        del program
        gc.collect()


@pytest.mark.parametrize("block", [0, 32])
def test_float8_is_upcast_when_it_is_packed(block):
    """`explain` says so; results are those of the float32 matrix."""
    numbers = RNG.standard_normal((96, 40)).astype(ml_dtypes.float8_e4m3fn)
    scales = RNG.random((3, 40) if block else 40).astype(np.float32)
    named = {"axis": 0, "block_size": block} if block else {"axis": 1}
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["w"], **named),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    model = wrap(nodes, 96, 40, [initializer("q", numbers), initializer("s", scales)], opset=23)
    matrix = numbers.astype(float) * (np.repeat(scales, 32, 0) if block else scales)
    with compile_model(model) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type == "MatMul"]
        assert "float32: its float8_e4m3fn weights are upcast when they are packed" in kernel
        for rows in (1, 9):
            x = rows_of(rows, 96)
            right, most = expected(x, matrix, 0)
            np.testing.assert_allclose(
                program.run({"x": x})["y"], right, rtol=1e-5, atol=1e-5 * most
            )


def test_blocks_of_a_shape_without_a_kernel_say_so():
    """Blocks of 12 fit no words of 8 weights: they are upcast, and `explain` has the reason."""
    model, matrix, _ = qdq("uint4", 0, 12)
    with compile_model(model) as program:
        (kernel,) = [p.kernel for p in program.explain() if p.op_type == "MatMul"]
        assert "float32: its uint4 weights are upcast when they are packed" in kernel
        x = rows_of(3, 96)
        right, most = expected(x, matrix, 0)
        np.testing.assert_allclose(program.run({"x": x})["y"], right, rtol=1e-5, atol=1e-5 * most)


def test_sizes_of_what_is_packed():
    """Half a byte for a weight of 4 bits, 4 bytes for a block's scale, 1 for its zero point."""
    from narrowpass_xnn_cpu.native.library import extension

    lib, ffi = extension().lib, extension().ffi
    form = {"outputs": 64, "inputs": 128, "block": 32, "bits": 4, "scales": 0, "zeros": 0}
    for zeros, number in (("COMMON", 0), ("U8", 1), ("F32", 4)):
        form["zeros"] = getattr(lib, f"NP_NBITS_ZEROS_{zeros}")
        size = lib.np_nbits_packed_size(ffi.new("struct np_nbits_matrix *", form))
        assert size == 64 * (128 // 2 + 4 * (4 + number) + 4)


@pytest.mark.parametrize("kind", ["int4", "uint4"])
@pytest.mark.parametrize("zeros", [False, True])
def test_gather_block_quantized(kind, zeros):
    """Of 4-bit integers, against onnxruntime: equal but for one rounding."""
    onnxruntime = pytest.importorskip("onnxruntime")
    model, table = embedding(kind, 16, zeros)
    names = ["q", "i", "s", *(["z"] if zeros else [])]
    node = helper.make_node(
        "GatherBlockQuantized",
        names,
        ["y"],
        domain="com.microsoft",
        gather_axis=0,
        quantize_axis=1,
        block_size=16,
    )
    del model.graph.node[:]
    model.graph.node.append(node)
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    at = np.array([3, 69, 0])
    (right,) = onnxruntime.InferenceSession(model.SerializeToString()).run(None, {"i": at})
    with compile_model(model) as program:
        assert "gather int4" in [p.kernel for p in program.explain()]
        (got,) = program.run({"i": at}).values()
    np.testing.assert_allclose(got, right, rtol=1e-6, atol=0)
    np.testing.assert_allclose(got, table[at], rtol=1e-6, atol=0)
