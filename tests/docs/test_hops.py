"""The architecture page's hops are what runs, in this order: traced on a convolution."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import narrowpass

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
ROW = re.compile(r"^\| (\d) \| `([\w./]+)` \| `([\w.]+)` \|", re.MULTILINE)
MOST = 7


def hops() -> list[list[tuple[str, str]]]:
    """Return the tables of the page: the file and the function of each hop."""
    tables: list[list[tuple[str, str]]] = []
    for number, file, function in ROW.findall(PAGE.read_text("utf-8")):
        if number == "1":
            tables.append([])
        assert int(number) == len(tables[-1]) + 1
        tables[-1].append((file, function))
    return tables


def save_model(path: Path) -> None:
    """Write a convolution with stride 2, whose weights no other test has packed."""
    node = helper.make_node("Conv", ["x", "w"], ["y"], strides=[2, 2])
    weight = np.random.default_rng(20).standard_normal((16, 8, 3, 3)).astype(np.float32)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8, 9, 9])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    narrowpass.build(model, "", out=path)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the functions that loading and running call, in the order of their first call."""
    target = pytest.importorskip("narrowpass_xnn_cpu.native.target")
    folder = tmp_path_factory.mktemp("hops")
    save_model(folder / "m.narrow")
    called: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__", "")
            called[f"{module}:{frame.f_code.co_qualname}"] = None

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(target.OVERRIDES, "fp32_lanes", 16)
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            with narrowpass.load(
                folder / "m.narrow", "xnn-cpu", threads=1, cache_dir=folder
            ) as program:
                program.run({"x": np.ones((1, 8, 9, 9), np.float32)})
        finally:
            sys.setprofile(before)
    return list(called)


def test_there_are_two_lists_of_at_most_seven_hops():
    tables = hops()
    assert len(tables) == 2
    assert all(1 < len(table) <= MOST for table in tables)


@pytest.mark.parametrize("index", [0, 1], ids=["node", "weight"])
def test_hops_are_called_in_order(trace, index):
    calls = []
    for file, function in hops()[index]:
        if file.endswith(".c"):
            assert re.search(rf"\b{function}\(", (ROOT / file).read_text("utf-8"))
            continue
        module = file.partition("/src/")[2].removesuffix(".py").replace("/", ".")
        calls.append(trace.index(f"{module}:{function}"))
    assert calls == sorted(calls)
