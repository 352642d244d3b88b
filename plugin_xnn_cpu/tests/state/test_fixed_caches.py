"""KV caches of fixed size, which TensorScatter writes rows into, beside onnx's evaluator."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator
from xnn_kit import compile_model

from narrowpass.errors import BackendError, UsageError

HEADS, GROUPS, HEAD, ROOM = 4, 2, 16, 24


def model_of(batch: int, *, padded: bool, mode: str = "linear"):
    """Return attention over caches; keys behind the rows are excluded by their count or a mask."""
    floats, integers = TensorProto.FLOAT, TensorProto.INT64
    nodes = [
        helper.make_node("TensorScatter", [f"past_{n}", n, "at"], [f"present_{n}"], n, mode=mode)
        for n in "kv"
    ]
    operands = ["q", "present_k", "present_v", "" if padded else "mask"]
    operands += ["", "", "count"] if padded else []
    nodes.append(helper.make_node("Attention", operands, ["y"], "attention"))
    inputs = [
        helper.make_tensor_value_info("q", floats, [batch, HEADS, "S", HEAD]),
        *(helper.make_tensor_value_info(n, floats, [batch, GROUPS, "S", HEAD]) for n in "kv"),
        helper.make_tensor_value_info("at", integers, [batch]),
        helper.make_tensor_value_info("count", integers, [batch])
        if padded
        else helper.make_tensor_value_info("mask", floats, [batch, 1, "S", ROOM]),
    ]
    caches = [batch, GROUPS, ROOM, HEAD]
    inputs += [helper.make_tensor_value_info(f"past_{n}", floats, caches) for n in "kv"]
    outputs = [helper.make_tensor_value_info("y", floats, [batch, HEADS, "S", HEAD])]
    outputs += [helper.make_tensor_value_info(f"present_{n}", floats, caches) for n in "kv"]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    imports = [helper.make_opsetid("", 24)]
    return helper.make_model(graph, opset_imports=imports, ir_version=11)


def feeds_of(batch: int, rows: int, at: np.ndarray, *, padded: bool, seed: int):
    """Return feeds for new rows, the first of them at `at` of each sequence."""
    rng = np.random.default_rng(seed)
    shapes = {"q": HEADS, "k": GROUPS, "v": GROUPS}
    feeds = {
        name: rng.standard_normal((batch, heads, rows, HEAD)).astype(np.float32)
        for name, heads in shapes.items()
    }
    feeds["at"] = at % ROOM
    if padded:
        return feeds | {"count": np.minimum(at + rows, ROOM)}
    keys, queries = np.arange(ROOM), at[:, None] + np.arange(rows)
    seen = keys[None, None] <= queries[..., None]
    return feeds | {"mask": np.where(seen, 0, -np.inf).astype(np.float32)[:, None]}


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize(
    ("padded", "mode"), [(True, "linear"), (False, "linear"), (True, "circular")]
)
def test_prompts_and_tokens(batch, padded, mode):
    """A prompt and tokens, until the cache is full, or until rows are overwritten.

    16 float32 terms are accumulated in another order, and exponentials within 2 units.
    """
    model = model_of(batch, padded=padded, mode=mode)
    oracle = ReferenceEvaluator(model)
    caches = {f"past_{n}": np.zeros((batch, GROUPS, ROOM, HEAD), np.float32) for n in "kv"}
    at = np.array([0, 3][:batch])
    with compile_model(model) as program, program.session() as session:
        for seed, rows in enumerate((5, 1, 1, 4, 1, *[1] * (9 if mode == "linear" else 20))):
            feeds = feeds_of(batch, rows, at, padded=padded, seed=seed)
            wanted, *presents = oracle.run(None, {**feeds, **caches})
            found = session.run(feeds)
            assert found.keys() == {"y"}
            np.testing.assert_allclose(found["y"], wanted, rtol=0, atol=2e-6)
            caches = dict(zip(caches, presents, strict=True))
            for name, value in caches.items():
                np.testing.assert_array_equal(session.values()[name], value)
            at = at + rows


def test_forks_go_on_alone(tmp_path):
    model = model_of(1, padded=True)
    first, second = (feeds_of(1, 2, np.array([at]), padded=True, seed=at) for at in (0, 2))
    with compile_model(model) as program, program.session() as session:
        session.run(first)
        before = session.values()["past_k"].copy()
        session.save(tmp_path / "state.npz")
        fork = session.fork()
        wanted = fork.run(second)["y"]
        np.testing.assert_array_equal(session.values()["past_k"], before)
        np.testing.assert_array_equal(session.run(second)["y"], wanted)
        session.load(tmp_path / "state.npz")
        np.testing.assert_array_equal(session.run(second)["y"], wanted)


def test_the_reason_is_stated():
    with compile_model(model_of(1, padded=True)) as program:
        reason = program.session().reason
        assert reason == (
            "method 'main': cache 'past_k' has a fixed size, and node 'k' (TensorScatter) writes "
            "rows into a copy"
        )
        with pytest.raises(UsageError, match=r"caches of int8 must be .*'past_k' has a fixed size"):
            program.session("int8")


def test_rows_behind_the_end_are_refused():
    feeds = feeds_of(1, 5, np.array([ROOM - 2]), padded=True, seed=0)
    with compile_model(model_of(1, padded=True)) as program, program.session() as session:
        with pytest.raises(BackendError, match="node 'k' failed: an index is out of range"):
            session.run(feeds)
        assert not session.values()
