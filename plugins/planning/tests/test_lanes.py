"""Lanes of partitions of Python callables, beside numpy on each lane."""

from __future__ import annotations

import numpy as np
import pytest

from narrowpass.errors import BackendError
from narrowpass_planning.memory.workspace import Workspace
from narrowpass_planning.plan.lanes import UnevenLanesError
from narrowpass_planning.plan.partition import Partition
from narrowpass_planning.plan.python_executor import OneThread, PythonExecutor, python_run
from narrowpass_planning.plan.shapes import Shapes
from narrowpass_planning.plan.step import Run, Slot, Step, elements

pytestmark = pytest.mark.anywhere
FLOAT = np.dtype(np.float32)
EXECUTOR, POOL = PythonExecutor(), OneThread()


class Map(Step):
    """A function of elements, or of rows of `axes` axes, that takes `most` rows at a time."""

    kernel = "map"

    def __init__(self, function, inputs, output, axes=0, most=None, in_place=()):
        super().__init__(inputs, output)
        self.row_axes, self.in_place = axes, in_place
        self._function, self._most = function, most
        self.calls = []

    def size(self, shapes, sizing):
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError as error:
            raise BackendError(str(error)) from error
        if self._most is not None and shape[0] > self._most:
            raise BackendError(f"{self._most} rows at most")

        def call(*arrays):
            self.calls.append(arrays[-1].shape)
            arrays[-1][...] = self._function(*arrays[:-1])

        return python_run(self, shapes, shape, call)


class Joined(Step):
    """x + 1 and x * 2, the rows of the first before those of the second; see `Segment`."""

    kernel = "joined"
    row_axes = 1

    def size(self, shapes, sizing):
        ((rows, columns),) = shapes

        def call(x, out):
            flat = out.reshape(-1)
            flat[: x.size] = (x + 1).reshape(-1)
            flat[x.size :] = (x * 2).reshape(-1)

        return python_run(self, shapes, (rows, 2 * columns), call)


class Segment(Step):
    """A view: one of the results of `Joined`."""

    kernel = "view"
    row_axes = 1

    def __init__(self, given, output, part):
        super().__init__([given], output)
        self._part = part

    def size(self, shapes, sizing):
        ((rows, columns),) = shapes
        return Run((rows, columns // 2), view=self._part * rows * columns // 2 * 4)


class Flat(Step):
    """A view of all elements as one row, which knows nothing of lanes."""

    kernel = "view"

    def size(self, shapes, sizing):
        return Run((1, elements(shapes[0])), view=0)


def slot(name, constant=None):
    return Slot(name, FLOAT, constant)


def partition_of(steps, inputs, outputs):
    return Partition(0, steps, inputs, outputs, {}, [], Workspace(), EXECUTOR)


def run_lanes(partition, feeds, apart=(), moving=()):
    """Bind a partition to the feeds of all lanes, and run it."""
    sizes = [partition.bind(fed, Shapes({}), POOL).sizes() for fed in feeds]
    lanes = partition.bind_lanes(sizes, apart, moving, POOL)
    lanes.bind_apart({name: [fed[name] for fed in feeds] for name in apart})
    return lanes, lanes.run(feeds, POOL)


def run_alone(partition, feeds):
    arrays = dict(feeds)
    partition.run(arrays, Shapes({}), POOL, {})
    return arrays


def test_a_step_runs_once_for_all_lanes():
    x, a, y = slot("x"), slot("a"), slot("y")
    first = Map(lambda x, w: x + w, [x, slot("w", np.arange(3, dtype=np.float32))], a)
    second = Map(lambda a: a - a.mean(-1, keepdims=True), [a], y, axes=1, in_place=(0,))
    partition = partition_of([first, second], {"x": x}, {"y": y})
    feeds = [{"x": np.full((2, 3), lane, np.float32)} for lane in range(4)]
    _, found = run_lanes(partition, feeds)
    for results in found:
        np.testing.assert_allclose(results["y"], [[-1, 0, 1]] * 2)
    assert (first.calls, second.calls) == ([(8, 3)], [(8, 3)])


def test_rows_that_are_computed_together_are_those_of_a_lane():
    x, y = slot("x"), slot("y")
    step = Map(lambda x: x - x.mean(), [x], y, axes=None)
    partition = partition_of([step], {"x": x}, {"y": y})
    feeds = [{"x": np.array([[lane, lane + 2]], np.float32)} for lane in range(3)]
    _, found = run_lanes(partition, feeds)
    for results in found:
        np.testing.assert_array_equal(results["y"], [[-1, 1]])
    assert step.calls == [(1, 2)] * 3


@pytest.mark.parametrize(("lanes", "calls"), [(4, [4]), (5, [3, 2]), (9, [3, 3, 3]), (8, [4, 4])])
def test_a_kernel_of_few_rows_runs_for_some_lanes_at_a_time(lanes, calls):
    x, y = slot("x"), slot("y")
    step = Map(lambda x: x * 3, [x], y, most=4)
    partition = partition_of([step], {"x": x}, {"y": y})
    feeds = [{"x": np.full((1, 2), lane, np.float32)} for lane in range(lanes)]
    _, found = run_lanes(partition, feeds)
    assert [results["y"].tolist() for results in found] == [[[3.0 * n] * 2] for n in range(lanes)]
    assert [rows for rows, _ in step.calls] == calls


def test_views_of_joined_rows_are_those_of_each_lane():
    x, joined, one, two, flat, y = map(slot, ("x", "joined", "one", "two", "flat", "y"))
    steps = [
        Joined([x], joined),
        Segment(joined, one, 0),
        Segment(joined, two, 1),
        Flat([two], flat),
        Map(lambda one, flat: one + flat, [one, flat], y, axes=None),
    ]
    partition = partition_of(steps, {"x": x}, {"y": y})
    feeds = [{"x": np.array([[lane, 10 * lane]], np.float32)} for lane in range(3)]
    lanes, found = run_lanes(partition, feeds)
    assert lanes.plan.calls[steps[0]][0].count == 3
    for fed, results in zip(feeds, found, strict=True):
        np.testing.assert_array_equal(results["y"], fed["x"] + 1 + fed["x"] * 2)


def test_inputs_that_lie_apart_may_have_other_shapes():
    x, cache, total, y = map(slot, ("x", "cache", "total", "y"))

    class Total(Map):
        def size(self, shapes, sizing):
            return python_run(self, shapes, (1, 1), lambda c, out: out.fill(c.sum()))

    steps = [Total(None, [cache], total, axes=None), Map(lambda x, t: x * t, [x, total], y)]
    partition = partition_of(steps, {"x": x, "cache": cache}, {"y": y})
    feeds = [
        {"x": np.ones((1, 2), np.float32), "cache": np.ones((lane + 1, 2), np.float32)}
        for lane in range(3)
    ]
    lanes, found = run_lanes(partition, feeds, apart=["cache"])
    assert [results["y"].tolist() for results in found] == [[[2, 2]], [[4, 4]], [[6, 6]]]
    others = [np.full((lane + 1, 2), 2, np.float32) for lane in range(3)]
    lanes.bind_apart({"cache": others})
    found = lanes.run(feeds, POOL)
    assert [results["y"].tolist() for results in found] == [[[4, 4]], [[8, 8]], [[12, 12]]]
    with pytest.raises(UnevenLanesError, match="'cache' has not the same shape"):
        run_lanes(partition, feeds)


def test_outputs_that_are_copied():
    """One value under two names, a constant, and, which one tape cannot, an input."""
    x, y, constant = slot("x"), slot("y"), slot("c", np.ones((1, 2), np.float32))
    step = Map(lambda x: x + 1, [x], y)
    inner = Map(lambda y: y * 2, [y], slot("z"))
    feeds = [{"x": np.full((1, 2), lane, np.float32)} for lane in range(2)]
    ends = {"z": inner.output, "y": y, "c": constant}
    _, found = run_lanes(partition_of([step, inner], {"x": x}, ends), feeds)
    for lane, results in enumerate(found):
        np.testing.assert_array_equal(results["y"], [[lane + 1] * 2])
        np.testing.assert_array_equal(results["z"], [[2 * lane + 2] * 2])
        np.testing.assert_array_equal(results["c"], [[1, 1]])
    with pytest.raises(UnevenLanesError, match="output 'same' is a copy"):
        run_lanes(partition_of([step], {"x": x}, {"y": y, "same": x}), feeds)


def test_lanes_and_single_runs_by_turns():
    x, y = slot("x"), slot("y")
    partition = partition_of([Map(lambda x: x + 1, [x], y)], {"x": x}, {"y": y})
    feeds = [{"x": np.full((1, 2), lane, np.float32)} for lane in range(2)]
    for _ in range(2):
        lanes, found = run_lanes(partition, feeds)
        assert [results["y"][0, 0] for results in found] == [1, 2]
        assert (partition.lanes, partition.bound) == (lanes, None)
        np.testing.assert_array_equal(run_alone(partition, feeds[1])["y"], [[2, 2]])
        assert partition.lanes is None


@pytest.mark.parametrize("seed", range(150))
def test_random_graphs(seed):
    """Elementwise steps of random shapes, with constants and other values that broadcast."""
    rng = np.random.default_rng(seed)
    lanes, lead = int(rng.integers(2, 5)), int(rng.integers(1, 4))

    def shape_of():
        rank = int(rng.integers(0, 4))
        sizes = [int(rng.choice([1, 2])), int(rng.choice([1, 3]))]
        return ((lead, *sizes) if rng.random() < 0.6 else (1, lanes, *sizes))[:rank]

    shapes = [shape_of() for _ in range(2)]
    inputs = {f"x{index}": slot(f"x{index}") for index in range(2)}
    known = dict(zip(inputs.values(), shapes, strict=True))
    functions = {"add": np.add, "less": np.subtract, "most": np.maximum}
    steps, recipe = [], []
    for index in range(8):
        pair = [list(known)[int(rng.integers(len(known)))] for _ in range(2)]
        if rng.random() < 0.4:
            shape = shape_of() if rng.random() < 0.5 else (lead * lanes, 1, 3)
            pair[1] = slot(f"c{index}", rng.standard_normal(shape).astype(np.float32))
        one, other = (known.get(s, () if s.constant is None else s.constant.shape) for s in pair)
        try:
            shape = np.broadcast_shapes(one, other)
        except ValueError:
            continue
        if elements(shape) > 4096:
            continue
        name = str(rng.choice(list(functions)))
        out = slot(f"v{index}")
        axes = None if rng.random() < 0.2 else 0
        most = int(rng.integers(1, 6)) if shape and rng.random() < 0.3 else None
        if most is not None and shape[0] > most:
            most = None
        steps.append(Map(functions[name], pair, out, axes=axes, most=most, in_place=(0, 1)))
        recipe.append((functions[name], pair, out))
        known[out] = shape
    if not steps:
        pytest.skip("no two of the shapes broadcast")
    wanted_names = {f"y{index}": step.output for index, step in enumerate(steps[-2:])}
    partition = partition_of(steps, inputs, wanted_names)
    feeds = [
        {
            name: rng.standard_normal(shape).astype(np.float32)
            for name, shape in zip(inputs, shapes, strict=True)
        }
        for _ in range(lanes)
    ]
    _, found = run_lanes(partition, feeds)
    for fed, results in zip(feeds, found, strict=True):
        values = {inputs[name]: array for name, array in fed.items()}
        for function, pair, out in recipe:
            values[out] = function(*(values.get(s, s.constant) for s in pair))
        for name, output in wanted_names.items():
            np.testing.assert_array_equal(results[name], values[output])
