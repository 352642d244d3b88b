"""Sparse tensors of files: what they are when they are loaded."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from narrowpass_ir.errors import ModelError
from narrowpass_ir.io import load_model, load_proto, save_model
from narrowpass_ir.io._sparse import DENSE_BYTES, DENSE_FACTOR

DTYPES = [
    np.float32,
    np.float64,
    np.float16,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.int4,
    ml_dtypes.uint4,
    np.int8,
    np.uint8,
    np.int16,
    np.int32,
    np.int64,
    np.uint16,
    np.uint32,
    np.uint64,
    np.bool_,
    np.complex64,
    np.complex128,
]


def sparse(values, indices, dims, name="w"):
    tensor = numpy_helper.from_array(np.asarray(values), name)
    return helper.make_sparse_tensor(tensor, numpy_helper.from_array(np.array(indices)), dims)


def coo(dense, name="w", *, linear=False):
    """Return a tensor in its sparse form."""
    places = np.argwhere(dense) if not linear else np.flatnonzero(dense)
    values = dense[dense.astype(bool)]
    return sparse(values, places.astype(np.int64), dense.shape, name)


def model(*tensors, op="Identity", kind=TensorProto.FLOAT, node=None):
    """Return a model whose output is its sparse initializer `w`."""
    node = node or helper.make_node(op, ["w"], ["y"], name="n")
    graph = helper.make_graph(
        [node],
        "g",
        [],
        [helper.make_tensor_value_info("y", kind, None)],
        sparse_initializer=tensors,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize("linear", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_both_layouts_of_indices_in_every_type(dtype, linear):
    dense = np.zeros((3, 4, 5), dtype)
    for place, number in {(0, 0, 1): 1, (0, 3, 4): 2, (1, 2, 0): 3, (2, 3, 4): 1}.items():
        dense[place] = np.array(number).astype(dtype)
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    loaded = load_proto(model(coo(dense, linear=linear), kind=kind))
    tensor = loaded.graph.initializers["w"].const_value
    assert int(tensor.dtype) == kind
    assert tensor.numpy().dtype == dense.dtype
    np.testing.assert_array_equal(tensor.numpy(), dense)


def test_texts():
    values = helper.make_tensor("w", TensorProto.STRING, [2], [b"a", "ö".encode()])
    indices = numpy_helper.from_array(np.array([1, 3]))
    proto = model(helper.make_sparse_tensor(values, indices, [2, 2]), kind=TensorProto.STRING)
    tensor = load_proto(proto).graph.initializers["w"].const_value
    assert tensor.numpy().tolist() == [[b"", b"a"], [b"", "ö".encode()]]


def test_a_tensor_without_values():
    empty = numpy_helper.from_array(np.empty(0, np.float32), "w")
    for indices in (None, np.empty(0, np.int64), np.empty((0, 2), np.int64)):
        tensor = onnx.SparseTensorProto(values=empty, dims=[2, 3])
        if indices is not None:
            tensor.indices.CopyFrom(numpy_helper.from_array(indices))
        found = load_proto(model(tensor)).graph.initializers["w"].const_value
        np.testing.assert_array_equal(found.numpy(), np.zeros((2, 3), np.float32))


def test_the_results_are_those_of_onnxruntime(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    rng = np.random.default_rng(3)
    dense = rng.standard_normal((6, 5)) * (rng.random((6, 5)) < 0.3)
    dense = dense.astype(np.float32)
    branch = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["p"])],
        "branch",
        [],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, None)],
    )
    other = helper.make_graph(
        [helper.make_node("Mul", ["x", "v"], ["q"])],
        "other",
        [],
        [helper.make_tensor_value_info("q", TensorProto.FLOAT, None)],
        sparse_initializer=[coo(dense[:1], "v")],
    )
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)],
            "g",
            [
                helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, None]),
                helper.make_tensor_value_info("c", TensorProto.BOOL, []),
            ],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
            sparse_initializer=[coo(dense)],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    source, target = tmp_path / "sparse.onnx", tmp_path / "dense.onnx"
    onnx.save(proto, source)
    loaded = load_model(source)
    save_model(loaded, target)
    written = onnx.load(target)
    assert not written.graph.sparse_initializer
    feeds = {"x": rng.standard_normal((2, 6)).astype(np.float32)}
    for c, due in ((True, feeds["x"] @ dense), (False, feeds["x"][:, :5] * dense[:1])):
        given = feeds if c else {"x": feeds["x"][:, :5]}
        results = [
            onnxruntime.InferenceSession(path).run(None, {**given, "c": np.array(c)})[0]
            for path in (target, *([source] if c else []))
        ]
        for got in results:
            np.testing.assert_allclose(got, due, rtol=1e-5, atol=1e-6)


def test_the_value_of_a_constant_node():
    node = helper.make_node("Constant", [], ["y"], name="n", sparse_value=coo(np.eye(3)))
    proto = model(node=node, kind=TensorProto.DOUBLE)
    (loaded,) = load_proto(proto).graph
    np.testing.assert_array_equal(loaded.attributes["value"].as_tensor().numpy(), np.eye(3))


def test_a_sparse_tensor_beside_external_data(tmp_path):
    weight = np.arange(4096, dtype=np.float32).reshape(64, 64)
    proto = model(coo(np.eye(64, dtype=np.float32)), op="Identity")
    proto.graph.initializer.append(numpy_helper.from_array(weight, "v"))
    proto.graph.node[0].CopyFrom(helper.make_node("MatMul", ["v", "w"], ["y"]))
    path = tmp_path / "m.onnx"
    onnx.save(proto, path, save_as_external_data=True, location="m.data", size_threshold=64)
    loaded = load_model(path)
    assert type(loaded.graph.initializers["v"].const_value).__name__ == "MappedTensor"
    np.testing.assert_array_equal(loaded.graph.initializers["v"].const_value.numpy(), weight)
    np.testing.assert_array_equal(loaded.graph.initializers["w"].const_value.numpy(), np.eye(64))


def test_a_sparse_tensor_declared_as_such():
    proto = model(coo(np.eye(3, dtype=np.float32)))
    info = helper.make_sparse_tensor_value_info("w", TensorProto.FLOAT, [3, 3])
    proto.graph.value_info.append(info)
    assert load_proto(proto).graph.initializers["w"].shape == [3, 3]


ONES = np.ones(2, np.float32)

WRONG = {
    "outside, linear": (sparse(ONES, [0, 6], [2, 3]), r"index \[6\] is not inside.*\[2, 3\]"),
    "outside": (sparse(ONES, [[0, 0], [0, 3]], [2, 3]), r"index \[0, 3\] is not inside"),
    "below 0": (sparse(ONES, [[0, -1], [1, 0]], [2, 3]), r"index \[0, -1\] is not inside"),
    "unsorted, linear": (sparse(ONES, [3, 1], [2, 3]), "not sorted"),
    "unsorted": (sparse(ONES, [[1, 0], [0, 2]], [2, 3]), "not sorted"),
    "twice": (sparse(ONES, [[1, 0], [1, 0]], [2, 3]), "an index twice"),
    "too few": (sparse(ONES, [1], [2, 3]), r"shape \[1\], \[2\] or \[2, 2\] is due"),
    "of another rank": (sparse(ONES, [[0], [1]], [2, 3]), "is due"),
    "matrix of values": (sparse(np.ones((1, 2), np.float32), [0, 1], [2, 3]), r"\[1, 2\], \[2\]"),
    "int32": (sparse(ONES, np.array([0, 1], np.int32), [2, 3]), "not int64"),
    "no dimensions": (sparse(ONES, [0, 1], []), "no dimensions"),
    "negative": (sparse(ONES, [0, 1], [-2, 3]), r"dimensions are \[-2, 3\]"),
    "huge": (sparse(ONES, [0, 1], [1 << 30, 1 << 30]), "is the limit"),
    "gigabytes": (sparse(ONES, [0, 1], [1 << 14, 1 << 14]), f"{DENSE_BYTES} is the limit"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_valid_sparse_tensor_is_refused(name):
    tensor, message = WRONG[name]
    with pytest.raises(ModelError, match=message):
        load_proto(model(tensor))


def test_many_small_ones_are_counted_together():
    edge = int((DENSE_BYTES // 8) ** 0.5)
    tensors = [sparse(ONES, [0, 1], [edge, edge], f"w{index}") for index in range(4)]
    with pytest.raises(ModelError, match=r"'w2'.*is the limit"):
        load_proto(model(*tensors))


def test_what_is_large_in_the_file_may_be_large(monkeypatch):
    monkeypatch.setattr("narrowpass_ir.io._sparse.DENSE_BYTES", 16)
    dense = np.zeros(4096, np.float32)
    dense[::16] = 1
    loaded = load_proto(model(coo(dense, linear=True)))
    np.testing.assert_array_equal(loaded.graph.initializers["w"].const_value.numpy(), dense)
    tensor = sparse(ONES, [0, 1], [DENSE_FACTOR * 40])
    with pytest.raises(ModelError, match="is the limit"):
        load_proto(model(tensor))


def test_values_in_another_file_are_refused():
    tensor = sparse(ONES, [0, 1], [2, 3])
    tensor.values.ClearField("raw_data")
    tensor.values.data_location = TensorProto.EXTERNAL
    tensor.values.external_data.add(key="location", value="m.data")
    with pytest.raises(ModelError, match="its values lie in another file"):
        load_proto(model(tensor))
