"""Names of weights by their content, in bundles on disk and in memory."""

from __future__ import annotations

import hashlib

import numpy as np
import onnx_ir as ir
import pytest
from array_cache_kit import floats, model_of

from narrowpass import Bundle
from narrowpass_planning.weights import names
from narrowpass_planning.weights.weight import digest

pytestmark = pytest.mark.anywhere
LARGE, SMALL = floats(40, 40), floats(1)


def named(array: np.ndarray) -> str:
    """Return the name of an array's content, by hashlib."""
    dtype = ir.DataType.from_numpy(array.dtype)
    return digest("tensor", hashlib.sha256(array.tobytes()).hexdigest(), dtype, list(array.shape))


def tensors(bundle: Bundle, method: str = "main") -> dict[str, ir.TensorProtocol]:
    return {
        name: value.const_value
        for name, value in bundle.methods[method].graph.initializers.items()
        if value.const_value is not None
    }


def by_name(found: dict[int, str], bundle: Bundle, method: str = "main") -> dict[str, str]:
    return {name: found[id(tensor)] for name, tensor in tensors(bundle, method).items()}


@pytest.fixture
def saved(tmp_path):
    """Return a bundle of a large and a small weight, opened from the disk."""
    Bundle({"main": model_of(w=LARGE, b=SMALL)}).save(tmp_path / "b.narrow")
    return Bundle.load(tmp_path / "b.narrow")


def test_the_set_of_weights_has_a_name(saved, tmp_path):
    hashes = sorted(info.sha256 for info in saved.manifest.tensors.values())
    assert names.key_of(saved) == digest("weights", *hashes)
    again = {"one": model_of(w=LARGE, b=SMALL), "two": model_of(v=LARGE)}
    Bundle(again).save(tmp_path / "c.narrow")
    assert names.key_of(Bundle.load(tmp_path / "c.narrow")) == names.key_of(saved)
    assert names.key_of(Bundle(again)) is None
    Bundle({"main": model_of(b=SMALL)}).save(tmp_path / "d.narrow")
    assert names.key_of(Bundle.load(tmp_path / "d.narrow")) is None


@pytest.mark.parametrize("name", [names.identities, names.printed])
def test_on_disk_a_name_is_that_of_the_content(saved, name):
    assert by_name(name(saved), saved) == {"w": named(LARGE), "b": named(SMALL)}


def test_a_tensor_that_replaced_another_has_not_its_name(saved):
    saved.methods["main"].graph.initializers["w"].const_value = ir.tensor(LARGE + 1, name="w")
    first = by_name(names.identities(saved), saved)
    assert first["w"] not in (named(LARGE), named(LARGE + 1))
    assert first["b"] == named(SMALL)
    assert first["w"] != by_name(names.identities(saved), saved)["w"]
    assert by_name(names.printed(saved), saved)["w"] == named(LARGE + 1)


def test_in_memory_a_name_is_of_this_bundle_alone():
    bundle = Bundle({"main": model_of(w=LARGE, v=LARGE)})
    found = by_name(names.identities(bundle), bundle)
    assert len({*found.values(), named(LARGE)}) == 3  # nothing is read to find equal ones
    assert not set(found.values()) & set(names.identities(bundle).values())


def test_methods_in_memory_share_names():
    one, two = model_of(w=LARGE, b=SMALL), model_of(v=LARGE, b=SMALL)
    bundle = Bundle({"one": one, "two": two})
    found = names.identities(bundle)
    first, second = (by_name(found, bundle, method) for method in ("one", "two"))
    assert first["w"] == second["v"] != named(LARGE)
    assert first["b"] == second["b"] == named(SMALL)
    assert not {first["w"]} & set(names.identities(bundle).values())  # of one call alone


def test_a_tensor_of_two_methods_is_named_once():
    one, two = model_of(w=LARGE), model_of(w=LARGE)
    tensor = one.graph.initializers["w"].const_value
    two.graph.initializers["w"].const_value = tensor
    bundle = Bundle({"one": one, "two": two})
    assert list(names.identities(bundle)) == [id(tensor)]


@pytest.mark.parametrize("name", [names.identities, names.printed])
def test_texts_and_inputs_with_no_value_have_no_name(name):
    model = model_of(w=LARGE)
    texts = ir.Value(name="t", const_value=ir.tensor(["a"], name="t"))
    last = ir.Value(name="z", const_value=ir.tensor(LARGE, name="z"))
    model.graph.register_initializer(texts)
    model.graph.register_initializer(last)
    bundle = Bundle({"main": model})
    model.graph.initializers["none"] = ir.Value(name="none", const_value=None)
    model.graph.initializers["z"] = model.graph.initializers.pop("z")
    assert list(model.graph.initializers) == ["w", "t", "none", "z"]
    assert set(name(bundle)) == {
        id(model.graph.initializers[key].const_value) for key in ("w", "z")
    }


def test_a_printed_plan_takes_the_hashes_of_the_disk(saved, monkeypatch):
    monkeypatch.setattr(names, "_HASHED", 0)
    assert by_name(names.printed(saved), saved)["w"] == named(LARGE)


def test_a_printed_plan_names_large_tensors_by_their_initializers():
    bytes_read = names._HASHED
    huge = np.zeros(bytes_read // 4 + 1, np.float32)
    edge = huge[:-1]
    bundle = Bundle({"main": model_of(huge=huge, edge=edge, w=LARGE)})
    found = by_name(names.printed(bundle), bundle)
    assert found["edge"] == named(edge)
    assert found["w"] == named(LARGE)
    assert found["huge"] == digest("tensor", "huge", ir.DataType.FLOAT, [huge.size])
