from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from narrowpass.errors import DataError
from narrowpass_ir.data.feeds import FeedChecker

F32 = np.float32


def _value(name, dtype=ir.DataType.FLOAT, shape=(), kind=None):
    dims = None if shape is None else ir.Shape(shape)
    return ir.Value(name=name, type=kind or ir.TensorType(dtype), shape=dims)


def _checker(*inputs, defaults=()):
    graph = ir.Graph(
        inputs, [], nodes=[], initializers=list(defaults), opset_imports={"": 21}, name="g"
    )
    return FeedChecker.of(graph, "encode")


@pytest.fixture
def batch():
    return _checker(_value("x", shape=("n", 3)), _value("ids", ir.DataType.INT64, ("n", None)))


GOOD = {"x": np.zeros((2, 3), F32), "ids": np.zeros((2, 7), np.int64)}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"idss": GOOD["x"]}, ["no input 'idss'", "did you mean 'ids'", "x (float32[n, 3])"]),
        ({1: GOOD["x"]}, ["no input 1"]),
        ({"ids": None}, ["'ids'", "int64", "not None"]),
        ({"x": GOOD["x"].astype(np.float64)}, ["float32", "not float64", ".astype(np.float32)"]),
        ({"x": GOOD["x"].astype(">f4")}, ["not >f4", ".astype(np.float32)"]),
        ({"x": GOOD["x"][0]}, ["rank 2, not 1", "[n, 3]", "[3]"]),
        ({"x": GOOD["x"][:, :2]}, ["axis 1 is 2, not 3"]),
        ({"ids": np.zeros((4, 7), np.int64)}, ["'n' is 4", "but 2 at axis 0 of 'x'"]),
        ({"x": [[1.0, 2.0, 3.0]]}, ["Python list", "np.asarray(value, dtype=np.float32)"]),
        ({"x": 1.0}, ["Python float"]),
        ({"x": np.float32(1)}, ["numpy scalar of float32"]),
        ({"x": np.array([["a"] * 3] * 2)}, ["float32", "not <U1"]),
    ],
)
def test_wrong_feeds_are_named(batch, change, words):
    with pytest.raises(DataError) as caught:
        batch.check({**GOOD, **change})
    for word in [*words, "'encode'"]:
        assert word in str(caught.value)


def test_missing_inputs_are_all_named(batch):
    with pytest.raises(DataError, match=r"nothing is fed to x \(float32\[n, 3\]\), ids \(int64"):
        batch.check({})


def test_what_is_no_mapping_is_refused(batch):
    with pytest.raises(DataError, match="a mapping of names to numpy arrays, not as a Python list"):
        batch.check([GOOD["x"]])


def test_good_feeds_pass(batch):
    batch.check(GOOD)
    batch.check({"x": np.zeros((0, 3), F32), "ids": np.zeros((0, 0), np.int64)})


@pytest.mark.parametrize("dtype", [d for d in ir.DataType if d not in (0, ir.DataType.STRING)])
def test_every_dtype_takes_itself_only(dtype):
    checker = _checker(_value("x", dtype, (2,)))
    checker.check({"x": np.zeros(2, dtype.numpy())})
    other = np.int8 if dtype != ir.DataType.INT8 else np.uint8
    with pytest.raises(DataError) as caught:
        checker.check({"x": np.zeros(2, other)})
    hint = str(caught.value).split(".astype(")[1].removesuffix(")")
    assert np.dtype(eval(hint, {"np": np, "ml_dtypes": ml_dtypes})) == dtype.numpy()


def test_strings():
    checker = _checker(_value("s", ir.DataType.STRING, ("n",)))
    checker.check({"s": np.array(["a", "b"])})
    checker.check({"s": np.array(["a", "b"], dtype=object)})
    with pytest.raises(DataError, match="takes strings, not int64"):
        checker.check({"s": np.array([1])})
    with pytest.raises(DataError, match="one element is a Python bytes: decode it"):
        checker.check({"s": np.array([b"a"], dtype=object)})


def test_inputs_with_defaults_may_be_left_out_and_are_checked_when_given():
    weight = _value("w", shape=(2,))
    weight.const_value = ir.tensor(np.ones(2, F32), name="w")
    checker = _checker(_value("x", shape=(2,)), weight, defaults=[weight])
    checker.check({"x": np.zeros(2, F32)})
    checker.check({"x": np.zeros(2, F32), "w": np.zeros(2, F32)})
    with pytest.raises(DataError, match="'w'"):
        checker.check({"x": np.zeros(2, F32), "w": np.zeros(3, F32)})


def test_sequences_and_optionals():
    tensor = ir.TensorType(ir.DataType.FLOAT)
    checker = _checker(
        _value("s", shape=("n",), kind=ir.SequenceType(tensor)),
        _value("o", shape=(2,), kind=ir.OptionalType(tensor)),
    )
    some = {"s": [np.zeros(1, F32), np.zeros(5, F32)], "o": None}
    checker.check(some)
    checker.check({**some, "s": [], "o": np.zeros(2, F32)})
    with pytest.raises(DataError, match=r"'s'.*takes a list of arrays, not an array"):
        checker.check({**some, "s": np.zeros(1, F32)})
    with pytest.raises(DataError, match=r"'s', element 1,.*not float64"):
        checker.check({**some, "s": [np.zeros(1, F32), np.zeros(1)]})
    with pytest.raises(DataError, match=r"'o'.*axis 0 is 3, not 2"):
        checker.check({**some, "o": np.zeros(3, F32)})


def test_what_the_model_does_not_say_is_not_checked():
    checker = _checker(_value("x", shape=None), ir.Value(name="y"))
    checker.check({"x": np.zeros((1, 2, 3), F32), "y": np.zeros(3)})


def test_sparse_inputs_are_refused():
    checker = _checker(_value("x", kind=ir.SparseTensorType(ir.DataType.FLOAT)))
    with pytest.raises(DataError, match="sparse"):
        checker.check({"x": np.zeros((), F32)})
