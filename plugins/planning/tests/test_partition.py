"""Partitions of Python callables: sizing, memory, outputs, growth, shape nodes, prepared runs."""

from __future__ import annotations

import mmap

import numpy as np
import pytest

from narrowpass.errors import BackendError
from narrowpass_planning.memory.allocator import allocating
from narrowpass_planning.memory.caching_allocator import SMALL
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.plan.partition import Partition, ValueLayout
from narrowpass_planning.plan.prepared import PreparedRun
from narrowpass_planning.plan.python_executor import OneThread, PythonExecutor, python_run
from narrowpass_planning.plan.shapes import ShapeNode, Shapes
from narrowpass_planning.plan.step import Run, Slot, Step

pytestmark = pytest.mark.anywhere
FLOAT = np.dtype(np.float32)
EXECUTOR, POOL = PythonExecutor(), OneThread()


class Map(Step):
    """Computes element by element."""

    kernel = "map"

    def __init__(self, function, inputs, output):
        super().__init__(inputs, output)
        self.in_place = tuple(range(len(inputs)))
        self._function = function
        self.sized = 0

    def size(self, shapes, sizing):
        self.sized += 1
        shape = np.broadcast_shapes(*shapes)
        return python_run(self, shapes, shape, self._function)


class Reshape(Step):
    """Another shape, which follows from shapes."""

    kernel = "view"
    values = ("target",)

    def size(self, shapes, sizing):
        return Run(tuple(int(size) for size in sizing.value("target")), view=0)


def slot(name):
    return Slot(name, FLOAT)


def chain(count, workspace=None):
    """Return x + 1, ... `count` times, as a partition, with its steps."""
    slots = [slot(f"v{index}") for index in range(count + 1)]
    steps = [
        Map(lambda x, out: np.add(x, 1, out=out), [slots[i]], slots[i + 1]) for i in range(count)
    ]
    for step in steps:
        step.in_place = ()
    places = [ValueLayout("x", slots[0], (0, 1))]
    workspace = workspace or Workspace()
    ends = {"x": slots[0]}, {"y": slots[-1]}
    return Partition(0, steps, *ends, {}, places, workspace, EXECUTOR), steps, workspace


def run(partition, feeds, shapes=None, out=None):
    arrays = dict(feeds)
    partition.run(arrays, shapes or Shapes({}), POOL, out or {})
    return arrays


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (0, 3), (64, 257)])
def test_values_and_memory_of_a_chain(shape):
    partition, _, workspace = chain(6)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    y = run(partition, {"x": x})["y"]
    np.testing.assert_array_equal(y, x + 6)
    # Of five inner values two live at once.
    block = -(-(x.nbytes + 64) // 64) * 64
    assert partition.memory == 2 * block
    assert workspace.size >= partition.memory


def test_the_workspace_is_memory_of_a_callers_allocator():
    sizes = []

    class Pages:
        def allocate(self, size, alignment):
            sizes.append(size)
            return np.frombuffer(mmap.mmap(-1, size), np.uint8)

    with allocating(Pages()):
        workspace = Workspace()
    partition, _, _ = chain(3, workspace)
    x = np.ones((4, 4), np.float32)
    np.testing.assert_array_equal(run(partition, {"x": x})["y"], x + 3)
    assert sizes
    assert workspace.memory.nbytes == sizes[-1]


def test_only_other_shapes_are_sized_again():
    partition, steps, _ = chain(2)
    for _ in range(3):
        run(partition, {"x": np.ones((2, 2), np.float32)})
    assert [step.sized for step in steps] == [1, 1]
    run(partition, {"x": np.ones((5, 2), np.float32)})
    assert [step.sized for step in steps] == [2, 2]


def test_an_output_lies_in_the_array_that_is_passed():
    partition, _, _ = chain(2)
    out = np.empty((2, 2), np.float32)
    assert run(partition, {"x": np.ones((2, 2), np.float32)}, out={"y": out})["y"] is out
    np.testing.assert_array_equal(out, 3)


def test_memory_of_outputs_is_used_again_once_they_are_gone():
    partition, _, _ = chain(1)
    x = np.zeros((SMALL, 1), np.float32)
    first = run(partition, {"x": x})["y"]
    held = first.ctypes.data
    second = run(partition, {"x": x})["y"]
    assert second.ctypes.data != held
    del first
    assert run(partition, {"x": x})["y"].ctypes.data == held


def test_a_step_writes_over_an_input_that_nothing_reads_later():
    x, a, b, y = map(slot, ("x", "a", "b", "y"))
    first = Map(lambda x, out: np.add(x, 1, out=out), [x], a)
    second = Map(lambda x, out: np.multiply(x, 2, out=out), [a], b)
    last = Map(lambda x, other, out: np.add(x, other, out=out), [b, x], y)
    partition = Partition(
        0, [first, second, last], {"x": x}, {"y": y}, {}, [], Workspace(), EXECUTOR
    )
    given = np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(run(partition, {"x": given})["y"], (given + 1) * 2 + given)
    assert partition.memory == 128  # one block


def test_a_value_that_is_read_by_broadcasting_is_not_written_over():
    x, a, b, y = map(slot, ("x", "a", "b", "y"))
    one = Map(lambda x, out: np.add(x, 1, out=out), [x], a)
    grown = Map(lambda row, x, out: np.add(row, x, out=out), [a, x], b)
    grown.in_place = (0,)
    last = Map(lambda x, out: np.copyto(out, x), [b], y)
    partition = Partition(0, [one, grown, last], {"x": x}, {"y": y}, {}, [], Workspace(), EXECUTOR)
    given = np.arange(4, dtype=np.float32).reshape(4, 1)
    np.testing.assert_array_equal(run(partition, {"x": given})["y"], 2 * given + 1)


def test_a_view_whose_shape_follows_from_shapes():
    x, flat, y = map(slot, ("x", "flat", "y"))
    node = ShapeNode("n", ["x"], ["target"], True, lambda given: [np.array([np.prod(given[0])])])
    steps = [Reshape([x], flat), Map(lambda x, out: np.negative(x, out=out), [flat], y)]
    places = [ValueLayout("x", x, (0, 1))]
    partition = Partition(0, [node, *steps], {"x": x}, {"y": y}, {}, places, Workspace(), EXECUTOR)
    shapes = Shapes({})
    for rows in (2, 3, 3, 1):
        given = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        np.testing.assert_array_equal(run(partition, {"x": given}, shapes)["y"], -given.reshape(-1))


def test_constants_and_inputs_that_are_outputs():
    x, y = slot("x"), slot("y")
    table = Slot("c", FLOAT, np.arange(3, dtype=np.float32))
    add = Map(lambda x, c, out: np.add(x, c, out=out), [x, table], y)
    outputs = {"y": y, "same": x, "c": table}
    partition = Partition(0, [add], {"x": x}, outputs, {}, [], Workspace(), EXECUTOR)
    given = np.ones(3, np.float32)
    found = run(partition, {"x": given})
    np.testing.assert_array_equal(found["y"], [1, 2, 3])
    np.testing.assert_array_equal(found["same"], given)
    np.testing.assert_array_equal(found["c"], [0, 1, 2])
    assert not np.shares_memory(found["same"], given)


def test_a_prepared_run_takes_feeds_of_its_shapes_only():
    partition, _, workspace = chain(2)
    feeds = {"x": np.ones((2, 2), np.float32)}
    run(partition, feeds)
    bound = partition.bound
    prepared = PreparedRun(partition, bound, bound.copied(), ("y",), feeds, workspace, POOL)
    np.testing.assert_array_equal(prepared.run({"x": np.full((2, 2), 5, np.float32)})["y"], 7)
    assert prepared.run({"x": np.ones((3, 2), np.float32)}) is None
    assert prepared.run({"x": np.ones((2, 2))}) is None
    run(partition, {"x": np.ones((3, 2), np.float32)})
    assert prepared.run(feeds) is None  # the partition is bound to other shapes


def test_each_step_is_timed():
    partition, steps, _ = chain(3)
    times = {}
    partition.run({"x": np.ones((2, 2), np.float32)}, Shapes({}), POOL, {}, times)
    assert list(times) == steps
    assert all(len(seconds) == 1 for seconds in times.values())


def test_a_kernel_that_fails_names_its_node():
    x, y = slot("x"), slot("y")

    def fail(x, out):
        raise ValueError("singular matrix")

    step = Map(fail, [x], y)
    step.nodes = ("solve",)
    partition = Partition(0, [step], {"x": x}, {"y": y}, {}, [], Workspace(), EXECUTOR)
    with pytest.raises(BackendError, match="node 'solve' failed: singular matrix"):
        run(partition, {"x": np.ones(2, np.float32)})
