"""Values of plans as JSON and back: the same values, through text, and what is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest

from narrowpass.bundle import NamedData
from narrowpass_ir.errors import ModelError
from narrowpass_ir.io import MappedFile, MappedTensor
from narrowpass_planning.plan.step import Slot
from narrowpass_planning.stored import NotStorableError, StaleError
from narrowpass_planning.stored.codec import LARGEST, Decoder, Encoder, dtype_of
from narrowpass_planning.stored.tensors import NamedTensors
from narrowpass_planning.weights.names import identity_from
from narrowpass_planning.weights.weight import Blocks, Quantized, Weight

pytestmark = pytest.mark.anywhere
RNG = np.random.default_rng(8)
FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Record:
    """A record of a step, with a field that follows from the others."""

    name: str
    sizes: tuple[int, ...]
    twice: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "twice", 2 * len(self.sizes))


CLASSES = {"Record": Record}


@pytest.fixture
def data(tmp_path):
    """Return the named data of a bundle on disk: a matrix of 64 KiB, and one of 6 bytes."""
    arrays = {
        "large": RNG.standard_normal((128, 128)).astype(np.float32),
        "small": np.arange(6, dtype=np.int8),
    }
    found = {}
    for name, array in arrays.items():
        path = tmp_path / name
        path.write_bytes(array.tobytes())
        digest = hashlib.sha256(array.tobytes()).hexdigest()
        dtype = ir.DataType.from_numpy(array.dtype)
        tensor = MappedTensor(MappedFile(path), 0, dtype, array.shape, name, sha256=digest)
        found[name] = NamedData(dtype, array.shape, array.nbytes, digest, tensor)
    return found


@pytest.fixture
def tensors(data):
    return NamedTensors(data)


def coded(value, tensors, others=None):
    """Encode a value, write it as text, and decode it with the tensors `others`."""
    encoder = Encoder(tensors, CLASSES)
    text = json.dumps([encoder.value(value), encoder.slots, encoder.weights])
    stored, slots, weights = json.loads(text)
    return Decoder(others or tensors, CLASSES, slots, weights).value(stored)


@pytest.mark.parametrize(
    "value",
    [
        *(None, True, 0, -7, 1 << 40, 0.5, float("inf"), "é\n", ""),
        *((), [], (1, (2, [3, None])), [(), "t"], b"", b"\0\xff"),
        *(np.dtype(np.float32), np.dtype(ml_dtypes.bfloat16), np.dtype(np.bool_)),
        Record("r", (1, 2)),
        (Record("a", ()), [Record("b", (3,))]),
    ],
)
def test_values(tensors, value):
    found = coded(value, tensors)
    assert type(found) is type(value)
    assert found == value


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.array(3.5, np.float16),
        np.zeros((0, 4), np.uint8),
        np.array([1, -2], ml_dtypes.int4),
        np.array([1.5], ml_dtypes.bfloat16),
        np.array([True, False]),
        RNG.standard_normal(LARGEST // 8),
    ],
)
def test_arrays(tensors, array):
    found = coded(array, tensors)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(found, array)
    assert found.flags.writeable


def test_scalars_of_numpy(tensors):
    for value in (np.float32(0.1), np.int64(-3), np.bool_(True)):
        found = coded(value, tensors)
        assert type(found) is type(value)
        assert found == value


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (object(), "a object has no stored form"),
        ({}, "a dict has no stored form"),
        (np.array(["a"], object), "texts have no stored form"),
        (np.zeros(LARGEST // 8 + 1), f"a constant of {LARGEST + 8} bytes is computed"),
        (Weight.of(np.zeros(2)), "a weight has no content name"),
    ],
)
def test_what_has_no_stored_form(tensors, value, reason):
    with pytest.raises(NotStorableError, match=reason):
        Encoder(tensors, CLASSES).value(value)


def test_another_class_of_a_known_name(tensors):
    other = dataclasses.make_dataclass("Record", ["name"])
    with pytest.raises(NotStorableError, match="a Record has no stored form"):
        Encoder(tensors, CLASSES).value(other("r"))


@pytest.mark.parametrize(("size", "much"), [(1 << 12, False), ((1 << 12) + 1, True)])
def test_whether_much_is_copied(tensors, size, much):
    encoder = Encoder(tensors, CLASSES)
    encoder.value(np.full(size, 7, np.uint8))
    encoder.value(np.zeros(1, np.uint8))
    assert encoder.copies_much == much


def test_an_array_of_the_bundle_is_stored_by_its_key(tensors, data):
    array = data["large"].tensor.numpy()
    encoder = Encoder(tensors, CLASSES)
    assert encoder.value(array) == ["m", "float32", [128, 128], "large"]
    assert encoder.value(array.reshape(-1).view(np.int16))[:2] == ["m", "int16"]
    assert encoder.copies_much is False
    for view in (array, array.reshape(2, 8192), array.reshape(-1).view(np.int16)):
        found = coded(view, tensors)
        assert (found.dtype, found.shape) == (view.dtype, view.shape)
        np.testing.assert_array_equal(found, view)
        assert np.shares_memory(found, array)
    small = data["small"].tensor.numpy()
    assert encoder.value(small)[0] == "a"  # without a look for it
    with pytest.raises(StaleError, match="the bundle has no tensor 'large'"):
        coded(array, tensors, NamedTensors({}))


def test_slots_are_stored_once(tensors):
    constant = np.arange(3, dtype=np.float32)
    one, two = Slot("x", FLOAT), Slot("c", FLOAT, constant)
    encoder = Encoder(tensors, CLASSES)
    assert encoder.value([one, two, one]) == ["l", [["s", 0], ["s", 1], ["s", 0]]]
    assert [row[:2] for row in encoder.slots] == [["x", "float32"], ["c", "float32"]]
    first, second, third = coded([one, two, one], tensors)
    assert first is third
    assert (first.name, first.dtype, first.constant) == ("x", FLOAT, None)
    assert (second.name, second.dtype) == ("c", FLOAT)
    np.testing.assert_array_equal(second.constant, constant)


# Weights


def test_a_weight_of_the_bundle_reads_its_tensor(tensors, data):
    item = data["large"]
    name = identity_from(item.sha256, item.dtype, item.shape)
    array = item.tensor.numpy()
    found = coded(Weight.of(array, name), tensors)
    assert (found.shape, found.dtype, found.identity) == ((128, 128), FLOAT, name)
    assert np.shares_memory(found.view(), array)
    np.testing.assert_array_equal(found.array(), array)
    with Path(item.tensor.file.name).open("r+b") as file:
        file.write(b"\xff" * 4)
    with pytest.raises(ModelError, match="large"):
        found.array()
    found.view()
    found.drop()


def test_a_small_weight_is_stored_and_a_large_one_must_be_packed(tensors):
    small = Weight.of(RNG.random(512), "s")
    large = Weight.of(RNG.random(513), "l")
    found = coded([small, large, small], tensors)
    assert found[0] is found[2]
    np.testing.assert_array_equal(found[0].array(), small.array())
    assert (found[1].shape, found[1].identity) == ((513,), "l")
    with pytest.raises(StaleError, match="the elements of weight l are needed"):
        found[1].array()


def test_the_storage_of_weights(tensors):
    integers = Weight.of(np.arange(6, dtype=np.int8).reshape(2, 3), "i")
    scale = Weight.of(np.ones(2, np.float32), "s")
    storage = Quantized(integers, scale, None, 0)
    weight = dataclasses.replace(
        Weight.of(np.ones((2, 3), np.float32), "w"), quantized=storage, stored="int8"
    )
    blocks = Blocks(integers, scale, None, 3, 3, 8, transposed=True)
    other = dataclasses.replace(Weight.of(np.ones((3, 2), np.float32), "b"), blocks=blocks)
    wide = weight.cast(np.dtype(np.float64))
    found, turned, wider, blocked = coded([weight, weight.transpose(1, 0), wide, other], tensors)
    assert (found.quantized.axis, found.quantized.zero, found.stored) == (0, None, "int8")
    np.testing.assert_array_equal(found.quantized.integers.array(), integers.array())
    assert turned.permuted_from == (found, (1, 0))
    assert turned.quantized.axis == 1
    assert wider.narrow is found
    assert wider.quantized.scale is found.quantized.scale
    assert blocked.blocks.integers is found.quantized.integers
    assert (blocked.blocks.size, blocked.blocks.transposed) == (3, True)


@pytest.mark.parametrize("change", [lambda values: values.append("more"), lambda v: v.pop()])
def test_a_record_of_more_or_fewer_values_is_no_record(tensors, change):
    encoder = Encoder(tensors, CLASSES)
    kind, name, values = encoder.value(Record("r", (1, 2)))
    decoder = Decoder(tensors, CLASSES, encoder.slots, encoder.weights)
    assert decoder.value([kind, name, values]) == Record("r", (1, 2))
    change(values)
    with pytest.raises(ValueError, match="zip"):
        decoder.value([kind, name, values])


def test_names_of_dtypes():
    for name in ("float32", "bool", "int64", "bfloat16", "int4", "float8_e4m3fn"):
        assert dtype_of(name).name == name


# Tensors of a bundle


def test_tensors_are_found_by_content_and_name(tensors, data):
    item = data["large"]
    array = item.tensor.numpy()
    assert tensors.key_of(array) == "large"
    assert tensors.key_of(array.reshape(2, -1)) == "large"
    assert tensors.key_of(array + 1) is None
    assert tensors.key_of(np.asfortranarray(array).T) is None
    assert tensors.key_named(identity_from(item.sha256, item.dtype, (128, 128))) == "large"
    assert tensors.key_named(identity_from(item.sha256, item.dtype, (128, 127))) is None
    assert tensors.tensor("large") is item.tensor
    with pytest.raises(StaleError, match="no tensor 'other'"):
        tensors.tensor("other")


def test_tensors_in_memory_are_none_of_a_bundle_on_disk():
    inner = ir.tensor(np.ones(3, np.float32))
    tensors = NamedTensors({"x": NamedData(ir.DataType.FLOAT, (3,), 12, None, inner)})
    assert tensors.key_of(np.ones(3, np.float32)) is None
    with pytest.raises(StaleError, match="no tensor 'x'"):
        tensors.tensor("x")
    tensors.check()


@pytest.mark.parametrize(("largest", "seen"), [(None, True), (1 << 16, True), (65535, False)])
def test_a_damaged_tensor_is_noticed(tensors, data, largest, seen):
    tensors.check()
    with Path(data["large"].tensor.file.name).open("r+b") as file:
        file.write(b"\xff" * 4)
    if seen:
        with pytest.raises(NotStorableError, match="large"):
            tensors.check(largest)
    else:
        tensors.check(largest)
