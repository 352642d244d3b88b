"""Damaged and hostile models: a clear error or the right answer; no crash, no hang."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import numpy as np
import onnx
import pytest
from layer_recipes import chain
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import close, feeds_for

import narrowpass
from narrowpass.errors import NarrowpassError
from narrowpass.framework.plugins import load_plugins
from narrowpass_reference.onnx_backend import prepare

PLUGINS = load_plugins()


@pytest.fixture(autouse=True)
def little_memory():
    """Let no model, nor the oracle, take all of the machine's memory."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * 4096
    resource.setrlimit(resource.RLIMIT_AS, (used + (4 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


NUMBERS = (-(2**62), -(2**31), -3, -1, 0, 1, 2, 3, 7, 255, 2**16, 2**31 - 1, 2**31, 2**40, 2**62)


def attribute(model: onnx.ModelProto, choice: random.Random) -> None:
    """Change a number of an attribute."""
    found = [a for node in model.graph.node for a in node.attribute]
    if not found:
        return
    one = choice.choice(found)
    if one.type == onnx.AttributeProto.INTS and one.ints:
        if choice.random() < 0.3:
            one.ints.append(choice.choice(NUMBERS))
        else:
            one.ints[choice.randrange(len(one.ints))] = choice.choice(NUMBERS)
    elif one.type == onnx.AttributeProto.INT:
        one.i = choice.choice(NUMBERS)
    elif one.type == onnx.AttributeProto.FLOAT:
        one.f = choice.choice([float("nan"), float("inf"), -1.0, 1e38])


def removed_attribute(model: onnx.ModelProto, choice: random.Random) -> None:
    """Leave an attribute out."""
    found = [node for node in model.graph.node if node.attribute]
    if found:
        node = choice.choice(found)
        del node.attribute[choice.randrange(len(node.attribute))]


def weight(model: onnx.ModelProto, choice: random.Random) -> None:
    """Replace the shape, type or content of a weight."""
    if not model.graph.initializer:
        return
    tensor = choice.choice(model.graph.initializer)
    array = numpy_helper.to_array(tensor)
    kind = choice.randrange(5)
    if kind == 0:
        array = array.reshape(-1)
    elif kind == 1:
        array = array.reshape(-1)[: array.size // 2]
    elif kind == 2:
        array = array.astype(choice.choice([np.float64, np.int64, np.float16, np.bool_]))
    elif array.dtype == np.int64 and array.size:
        array = array.copy()
        array.reshape(-1)[choice.randrange(array.size)] = choice.choice(NUMBERS)
    elif array.size:
        array = array.copy()
        array.reshape(-1)[choice.randrange(array.size)] = choice.choice([np.nan, np.inf, 1e38])
    tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def wiring(model: onnx.ModelProto, choice: random.Random) -> None:
    """Read another value: one of another shape, of a later node, or of none."""
    node = choice.choice([node for node in model.graph.node if node.input])
    names = [name for other in model.graph.node for name in other.output]
    names += [tensor.name for tensor in model.graph.initializer] + ["x", "nowhere", ""]
    node.input[choice.randrange(len(node.input))] = choice.choice(names)


def operator(model: onnx.ModelProto, choice: random.Random) -> None:
    """Replace the operator of a node."""
    kinds = [other.op_type for other in model.graph.node] + ["Conv", "Gemm", "Gather", "Nonsense"]
    choice.choice(model.graph.node).op_type = choice.choice(kinds)


def declared(model: onnx.ModelProto, choice: random.Random) -> None:
    """Declare another shape or type."""
    values = [*model.graph.value_info, *model.graph.output, *model.graph.input]
    kind = choice.choice(values).type.tensor_type
    if choice.random() < 0.3:
        kind.elem_type = choice.choice([TensorProto.INT64, TensorProto.FLOAT16, 99, 0])
    elif kind.shape.dim:
        dim = kind.shape.dim[choice.randrange(len(kind.shape.dim))]
        dim.dim_value = choice.choice([-5, 0, 1, 4, 2**31, 2**60])


def opset(model: onnx.ModelProto, choice: random.Random) -> None:
    """Claim another operator set."""
    model.opset_import[0].version = choice.choice([1, 5, 6, 9, 10, 11, 12, 13, 17, 20, 24])


MUTATIONS = [
    *(attribute, attribute, attribute, removed_attribute, weight, weight, weight),
    *(wiring, wiring, operator, declared, opset),
]


def attempt(file: Path, backend: str, feeds):
    """Return the outputs, or None where there was a clear error."""
    try:
        with narrowpass.load(file, backend, threads=1, pipeline="", plugins=PLUGINS) as program:
            return program.run(feeds)
    except NarrowpassError:
        return None


def try_seed(seed: int, folder: Path) -> bool:
    """Try one damaged model; return whether it still ran."""
    choice = random.Random(seed)
    case = chain(seed, 1 + seed % 8)
    model, feeds = case.model, case.feeds
    for _ in range(choice.choice([1, 1, 2, 4])):
        choice.choice(MUTATIONS)(model, choice)
    file = folder / "model.onnx"
    file.write_bytes(model.SerializeToString())
    got = attempt(file, "xnn-cpu", feeds)
    if got is None:
        return False
    expected = attempt(file, "reference", feeds)
    if expected is None:
        return True  # what the oracle does not take proves nothing
    for one, other in zip(got.values(), expected.values(), strict=True):
        # NaN and infinity differ where accumulators overflow in another order.
        if np.isfinite(other).all() and np.abs(other).max(initial=0) < 1e6:
            close(one, np.asarray(other), 1e-3, least=1e-2)
        else:
            assert one.shape == other.shape
    return True


@pytest.mark.parametrize("group", range(8))
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_damaged_models(group, tmp_path):
    assert sum(try_seed(seed, tmp_path) for seed in range(group * 25, group * 25 + 25)) < 25


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_many_damaged_models(tmp_path):
    ran = sum(try_seed(seed, tmp_path) for seed in range(10_000, 30_000))
    assert 0 < ran < 20_000


def one(node: onnx.NodeProto, shapes, weights=()) -> onnx.ModelProto:
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    graph = helper.make_graph(
        [node], "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], weights
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


HOSTILE = {
    "a bias that is too short": one(
        helper.make_node("Conv", ["x", "w", "b"], ["y"]),
        {"x": [1, 2, 4, 4]},
        [
            numpy_helper.from_array(np.ones((4, 2, 1, 1), np.float32), "w"),
            numpy_helper.from_array(np.ones(2, np.float32), "b"),
        ],
    ),
    "groups that do not divide": one(
        helper.make_node("Conv", ["x", "w"], ["y"], group=3),
        {"x": [1, 4, 4, 4]},
        [numpy_helper.from_array(np.ones((4, 2, 1, 1), np.float32), "w")],
    ),
    "channels that do not fit": one(
        helper.make_node("Conv", ["x", "w"], ["y"]),
        {"x": [1, "C", 4, 4]},
        [numpy_helper.from_array(np.ones((4, 2, 1, 1), np.float32), "w")],
    ),
    "a huge dilation": one(
        helper.make_node("Conv", ["x", "w"], ["y"], dilations=[2**31, 2**31]),
        {"x": [1, 2, 4, 4]},
        [numpy_helper.from_array(np.ones((4, 2, 3, 3), np.float32), "w")],
    ),
    "a huge padding": one(
        helper.make_node("Pad", ["x", "p"], ["y"]),
        {"x": [4, 4]},
        [numpy_helper.from_array(np.array([2**40, 0, 2**40, 0]), "p")],
    ),
    "a huge expansion": one(
        helper.make_node("Expand", ["x", "p"], ["y"]),
        {"x": [4, 4]},
        [numpy_helper.from_array(np.array([2**40, 2**30, 4, 4]), "p")],
    ),
    "matrices that do not fit": one(
        helper.make_node("MatMul", ["x", "z"], ["y"]), {"x": ["M", "K"], "z": ["L", 3]}
    ),
    "a scale of one for rows of four": one(
        helper.make_node("LayerNormalization", ["x", "s"], ["y"]), {"x": [2, 4], "s": ["N"]}
    ),
}
FEEDS = {"C": 4, "M": 2, "K": 3, "L": 5, "N": 3}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile(name):
    model = HOSTILE[name]
    feeds = feeds_for(model, sizes=FEEDS)
    with pytest.raises(NarrowpassError):
        prepare(model, backend="xnn-cpu", plugins=PLUGINS, threads=1).run(feeds)
