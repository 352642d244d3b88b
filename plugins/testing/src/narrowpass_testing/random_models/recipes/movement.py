"""Operators that move elements: views, copies, indices, sequences of them."""

from __future__ import annotations

import math

import numpy as np

from narrowpass_testing.random_models._builder import Draft, Recipes, UnfitError

TABLE = Recipes()


@TABLE.operators("Reshape")
def _reshape(d: Draft) -> None:
    x = d.take()
    target: list[int] = []
    if x.size:
        rest = x.size
        for _ in range(d.pick(0, 1, 2, 3) if x.size == 1 else d.pick(1, 2, 3)):
            part = d.pick(*[n for n in range(1, rest + 1) if rest % n == 0])
            target.append(part)
            rest //= part
        if rest > 1:
            target.append(rest)
        if target and d.chance(0.4):
            target[d.random.randrange(len(target))] = -1
        for axis, size in enumerate(target[: x.ndim]):
            if size == x.shape[axis] and d.chance(0.3):
                target[axis] = 0
    else:
        target = d.pick([0, *x.shape[1:]] if x.ndim else [0], list(x.shape))
        d.maybe("allowzero", 1)
        if d.attributes.get("allowzero"):
            target = list(x.shape)
    if not d.has_input(1):
        d.set("shape", target)
    else:
        d.ints(target)


@TABLE.operators("Transpose")
def _transpose(d: Draft) -> None:
    x = d.take()
    order = list(range(x.ndim))
    d.random.shuffle(order)
    if order and d.chance(0.85):
        d.set("perm", order)


@TABLE.operators("Squeeze")
def _squeeze(d: Draft) -> None:
    x = d.take(1, fits=lambda a: 1 in a.shape)
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    if d.chance(0.8):
        d.axes(sorted(d.random.sample(ones, d.random.randint(1, len(ones)))))


@TABLE.operators("Unsqueeze")
def _unsqueeze(d: Draft) -> None:
    x = d.take(0, 4)
    count = d.pick(1, 1, 2)
    d.axes(sorted(d.random.sample(range(x.ndim + count), count)))


@TABLE.operators("Flatten")
def _flatten(d: Draft) -> None:
    x = d.take(1)
    d.maybe("axis", *range(x.ndim + 1))


@TABLE.operators("Concat")
def _concat(d: Draft) -> None:
    x = d.take(1)
    axis = d.axis(x.ndim)
    for _ in range(d.pick(0, 1, 1, 2)):
        shape = list(x.shape)
        shape[axis] = d.pick(0 if d.builder.zeros else 1, 1, 2, 5)
        d.draw(shape)
    d.set("axis", axis)


@TABLE.operators("Split SplitToSequence")
def _split(d: Draft) -> None:
    x = d.take(1)
    axis = d.axis(x.ndim)
    size = x.shape[axis]
    d.set("axis", axis)
    sequence = d.schema.name == "SplitToSequence"
    count = d.random.randint(1, max(min(size, 4), 1))
    cuts = sorted(d.random.sample(range(1, size), count - 1)) if size > 1 else []
    parts = [int(n) for n in np.diff([0, *cuts, size])]
    d.outputs = 1 if sequence else len(parts)
    if sequence:
        d.maybe("keepdims", 0, 1)
        if d.chance(0.3):
            return
    if "split" in d.schema.attributes:
        d.set("split", parts)
    elif d.chance(0.6) or size % len(parts):
        d.ints(parts)
    elif "num_outputs" in d.schema.attributes:
        d.set("num_outputs", len(parts))


@TABLE.operators("Slice")
def _slice_(d: Draft) -> None:
    x = d.take(1)
    chosen = sorted(d.random.sample(range(x.ndim), d.random.randint(1, x.ndim)))
    by_operand = d.has_input(1)
    starts, ends, steps = [], [], []
    for axis in chosen:
        size = x.shape[axis]
        step = d.pick(1, 1, 1, 2, 3, -1, -2) if by_operand else 1
        first, last = d.random.randint(-size - 1, size + 1), d.random.randint(-size - 1, size + 1)
        starts.append(d.pick(first, 0, size) if step > 0 else d.pick(first, -1, 2**31 - 1))
        ends.append(d.pick(last, size, 2**31 - 1) if step > 0 else d.pick(last, -(2**31)))
        steps.append(step)
    if not by_operand:
        d.set("starts", starts)
        d.set("ends", ends)
        d.set("axes", chosen)
        return
    d.ints(starts)
    d.ints(ends)
    if chosen == list(range(len(chosen))) and set(steps) == {1} and d.chance(0.3):
        return
    d.ints(chosen)
    if set(steps) != {1} or d.chance(0.4):
        d.ints(steps)


@TABLE.operators("Pad")
def _pad(d: Draft) -> None:
    x = d.take(1)
    mode = d.pick("constant", "constant", "reflect", "edge", "wrap")
    if mode == "wrap" and d.schema.since_version < 19:
        mode = "edge"
    d.set("mode", mode)
    axes = list(range(x.ndim))
    pads = [d.pick(0, 0, 1, 2) for _ in range(2 * x.ndim)]
    for axis, size in enumerate(x.shape):
        limit = size - 1 if mode == "reflect" else size if mode == "wrap" else 9
        if mode == "edge" and not size:
            limit = 0
        for at in (axis, axis + x.ndim):
            pads[at] = max(min(pads[at], limit), 0)
        if mode == "constant" and size > 2 and d.chance(0.1):
            pads[axis] = -1
    if not d.has_input(1):
        d.set("pads", pads)
        d.maybe("value", 0.0, 1.5)
        return
    if d.has_input(3) and d.chance(0.2):
        axes = sorted(d.random.sample(axes, d.random.randint(1, x.ndim)))
        pads = [pads[axis] for axis in axes] + [pads[axis + x.ndim] for axis in axes]
    d.ints(pads)
    if d.chance(0.5):
        d.operand(np.asarray(d.pick(0, 1, 3)).astype(x.dtype))
    elif len(axes) < x.ndim:
        d.none()
    if len(axes) < x.ndim:
        d.ints(axes)


@TABLE.operators("Tile")
def _tile(d: Draft) -> None:
    x = d.take(1, 4)
    d.ints([d.pick(1, 1, 2, 3, 0 if d.builder.zeros else 1) for _ in range(x.ndim)])


@TABLE.operators("Expand")
def _expand(d: Draft) -> None:
    x = d.take(0, 4)
    shape = [d.pick(1, 2, 3) if size == 1 else d.pick(size, 1) for size in x.shape]
    d.ints([*d.pick([], [], [1], [2]), *shape])


@TABLE.operators("CenterCropPad")
def _center(d: Draft) -> None:
    x = d.take(1, 4)
    axes = sorted(d.random.sample(range(x.ndim), d.random.randint(1, x.ndim)))
    d.ints([d.pick(1, 2, 3, 5, 8) for _ in axes])
    d.set("axes", axes)


@TABLE.operators("Gather")
def _gather(d: Draft) -> None:
    x = d.take(1, 4, fits=lambda a: a.size > 0)
    axis = d.axis(x.ndim)
    d.set("axis", axis)
    d.ints(_indices(d, x.shape[axis], d.pick((), (1,), (3,), (2, 2), (0,))), constant=0.6)


def _indices(d: Draft, size: int, shape: tuple[int, ...]) -> np.ndarray:
    low = -size if d.schema.since_version >= 11 else 0
    return d.numbers.integers(low, size, shape)


@TABLE.operators("GatherElements")
def _gather_elements(d: Draft) -> None:
    x = d.take(1, 4, fits=lambda a: a.size > 0)
    axis = d.axis(x.ndim)
    d.set("axis", axis)
    shape = [d.random.randint(1, size) for size in x.shape]
    shape[axis] = d.pick(1, 2, 5)
    d.ints(_indices(d, x.shape[axis], tuple(shape)), constant=0.6)


@TABLE.operators("GatherND")
def _gather_nd(d: Draft) -> None:
    x = d.take(1, 4, fits=lambda a: a.size > 0)
    batch = d.random.randrange(x.ndim) if d.chance(0.3) else 0
    d.set("batch_dims", batch)
    batch = batch if "batch_dims" in d.attributes else 0
    last = d.random.randint(1, x.ndim - batch)
    shape = (*x.shape[:batch], *d.pick((), (2,), (3, 1)))
    columns = [_indices(d, x.shape[batch + k], shape) for k in range(last)]
    d.ints(np.stack(columns, -1), constant=0.6)


@TABLE.operators("ScatterElements")
def _scatter_elements(d: Draft) -> None:
    x = d.take(1, 4, fits=lambda a: a.size > 0)
    axis = d.axis(x.ndim)
    shape = [d.random.randint(1, size) for size in x.shape]
    order = d.numbers.permuted(
        np.broadcast_to(
            np.arange(x.shape[axis]).reshape(
                [-1 if k == axis % x.ndim else 1 for k in range(x.ndim)]
            ),
            x.shape,
        ),
        axis=axis,
    )
    reduction = d.pick("none", "none", "add", "mul", "max", "min")
    _reduce(d, reduction)
    d.set("axis", axis)
    d.ints(order[tuple(slice(0, n) for n in shape)], constant=0.6)
    d.draw(shape)


def _reduce(d: Draft, reduction: str) -> None:
    if reduction in ("max", "min") and d.schema.since_version < 18:
        return
    if reduction != "none" or d.chance(0.3):
        d.set("reduction", reduction)


@TABLE.operators("ScatterND")
def _scatter_nd(d: Draft) -> None:
    x = d.take(1, 4, fits=lambda a: a.size > 0)
    last = d.random.randint(1, x.ndim)
    rows = math.prod(x.shape[:last])
    chosen = d.numbers.permutation(rows)[: d.random.randint(1, min(rows, 4))]
    d.ints(np.stack(np.unravel_index(chosen, x.shape[:last]), -1), constant=0.6)
    _reduce(d, d.pick("none", "none", "add", "mul", "max", "min"))
    d.draw((len(chosen), *x.shape[last:]))


@TABLE.operators("TensorScatter")
def _tensor_scatter(d: Draft) -> None:
    batch, length, width = d.pick(1, 2), d.pick(4, 6), d.pick(1, 3)
    d.draw((batch, 2, length, width), constant=0.1)
    new = d.pick(1, 2)
    d.draw((batch, 2, new, width), constant=0.1)
    if d.chance(0.7):
        d.operand(d.numbers.integers(0, length - new + 1, batch))
    d.maybe("axis", -2, 2)
    d.maybe("mode", "linear", "circular")


@TABLE.operators("Compress")
def _compress(d: Draft) -> None:
    x = d.take(1, 4, fits=lambda a: a.size > 0)
    if d.chance(0.7):
        axis = d.axis(x.ndim)
        d.set("axis", axis)
        size = x.shape[axis]
    else:
        size = x.size
    d.operand(d.numbers.random(d.random.randint(1, size)) < 0.5, constant=0.5)


@TABLE.operators("NonZero Shape Size")
def _whole(d: Draft) -> None:
    x = d.take(0 if d.schema.name != "NonZero" else 1)
    if "start" in d.schema.attributes:
        d.maybe("start", -1, 0, 1, x.ndim)
        d.maybe("end", -1, 1, 2)


@TABLE.operators("Unique")
def _unique(d: Draft) -> None:
    x = d.take(1, 3, fits=lambda a: a.size > 0)
    if d.chance(0.6):
        d.set("axis", d.axis(x.ndim))
    d.maybe("sorted", 1)
    d.outputs = d.pick(1, 2, 4)


@TABLE.operators("DepthToSpace SpaceToDepth")
def _blocks(d: Draft) -> None:
    size = d.pick(1, 2, 3)
    n, c, h, w = d.pick(1, 2), d.pick(1, 2), d.pick(1, 2, 3), d.pick(1, 2)
    if d.schema.name == "DepthToSpace":
        d.draw((n, c * size**2, h, w), constant=0.1)
        d.maybe("mode", "DCR", "CRD")
    else:
        d.draw((n, c, h * size, w * size), constant=0.1)
    d.set("blocksize", size)


@TABLE.operators("Trilu")
def _trilu(d: Draft) -> None:
    d.take(2)
    d.maybe("upper", 0, 1)
    if d.chance(0.6):
        d.ints(d.pick(-2, -1, 0, 1, 3))


@TABLE.operators("EyeLike")
def _eye(d: Draft) -> None:
    d.take(2, 2)
    d.maybe("k", -1, 0, 1)
    d.maybe("dtype", 1, 7, 10, 11)


@TABLE.operators("OneHot")
def _one_hot(d: Draft) -> None:
    depth = d.pick(1, 3, 5)
    shape = d.pick((), (3,), (2, 2))
    d.ints(d.numbers.integers(-depth, depth, shape), constant=0.1)
    d.ints(d.pick(depth, [depth]))
    d.draw((2,), constant=0.9)
    d.maybe("axis", -1, 0, len(shape))


@TABLE.operators("Range")
def _range_(d: Draft) -> None:
    kind = d.bind()
    start, step = d.pick(0, 1, -3), d.pick(1, 2, -1)
    stop = start + step * d.pick(0, 1, 4, 7)
    for value in (start, stop, step):
        d.operand(np.asarray(value).astype(kind))


@TABLE.operators("ConstantOfShape")
def _constant_of_shape(d: Draft) -> None:
    from onnx import numpy_helper

    d.ints(d.pick([], [3], [2, 3], [1, 2, 2], [0, 3]))
    if d.chance(0.7):
        kind = d.pick(np.float32, np.int64, np.bool_, np.float16, np.int32)
        d.set("value", numpy_helper.from_array(np.array([d.pick(0, 1, 5)]).astype(kind)))


@TABLE.operators("ReverseSequence")
def _reverse_sequence(d: Draft) -> None:
    x = d.take(2, 4, fits=lambda a: a.size > 0)
    time = d.pick(0, 1)
    d.set("time_axis", time)
    d.set("batch_axis", 1 - time)
    d.operand(d.numbers.integers(1, x.shape[time] + 1, x.shape[1 - time]))


@TABLE.operators("SequenceConstruct")
def _sequence(d: Draft) -> None:
    d.take()
    for _ in range(d.pick(0, 1, 2)):
        d.take()
    d.outputs = 1


@TABLE.operators("SequenceAt SequenceErase SequenceInsert SequenceLength ConcatFromSequence")
def _of_sequence(d: Draft) -> None:
    """Operators on a sequence, which a node before creates."""
    from narrowpass_testing.random_models._builder import Draft as Inner

    name = d.schema.name
    from onnx import defs

    inner = Inner(d.builder, defs.get_schema("SequenceConstruct", d.builder.opset))
    first = inner.take(1, 3)
    count = d.pick(1, 2)
    for _ in range(count):
        inner.draw(first.shape)
    found = d.builder.add(inner)
    if found is None:
        raise UnfitError
    d.inputs.append(found[0])
    d.arrays.append(None)
    position = d.random.randint(-count - 1, count)
    if name in ("SequenceAt", "SequenceErase"):
        if name == "SequenceAt" or d.chance(0.7):
            d.ints(position)
    elif name == "SequenceInsert":
        d.inputs.append(inner.inputs[0])
        d.arrays.append(first)
        if d.chance(0.6):
            d.ints(position)
    elif name == "ConcatFromSequence":
        d.set("axis", d.pick(0, -1))
        d.maybe("new_axis", 0, 1)
