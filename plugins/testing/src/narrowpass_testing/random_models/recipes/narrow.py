"""Elements of few bits: casts to int4, uint4 and float8, and what moves such elements."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from narrowpass_testing.random_models._builder import Chain, Recipes, UnfitError

TABLE = Recipes()
INTEGERS = {"INT4": (-8, 7), "UINT4": (0, 15)}
FLOATS = ("FLOAT8E4M3FN", "FLOAT8E5M2", "FLOAT8E4M3FNUZ", "FLOAT8E5M2FNUZ")


def _kind(c: Chain) -> str:
    """Draw a type: those of float8 came with operator set 19, those of 4 bits with 21."""
    kinds = (*FLOATS, *(INTEGERS if c.opset >= 21 else ()))
    found: str = c.pick(*kinds)
    if c.opset < 19:
        raise UnfitError
    return found


def _number(kind: str) -> int:
    return int(onnx.TensorProto.DataType.Value(kind))


def _shape(c: Chain) -> tuple[int, ...]:
    found: tuple[int, ...] = c.pick((), (1,), (5,), (2, 8), (3, 7), (2, 3, 4), (1, 8, 2, 2))
    return found


def _cast(c: Chain) -> str:
    """Cast floats; integers are whole and within the range, as others have no rule."""
    kind, shape = _kind(c), _shape(c)
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        array = c.numbers.integers(low, high, shape, endpoint=True).astype(np.float32)
    else:
        array = c.floats(shape, c.pick(0.01, 1.0, 30.0))
    attributes: dict[str, Any] = (
        {"saturate": c.pick(0, 1)} if kind in FLOATS and c.chance(0.3) else {}
    )
    return c.add("Cast", [c.fed(array)], to=_number(kind), **attributes)


def _moved(c: Chain, name: str) -> str:
    """Move elements, or leave them where they are."""
    shape = c.value(name).shape
    operator = c.pick("", "Identity", "Reshape", "Transpose", "Unsqueeze", "Flatten", "Shape")
    if operator == "":
        return name
    if operator == "Reshape":
        return c.add(
            operator, [name, c.constant(np.array(c.pick([-1], [1, -1], [-1, 1]), np.int64))]
        )
    if operator == "Unsqueeze":
        return c.add(operator, [name, c.constant(np.array([0], np.int64))])
    if operator == "Transpose":
        return c.add(operator, [name], perm=c.random.sample(range(len(shape)), len(shape)))
    if operator == "Shape":
        shape_of = c.add(operator, [name])
        return c.add("Reshape", [name, shape_of])
    return c.add(operator, [name])


@TABLE.block("narrow", "Cast", opset=19, alone=True)
def _casts(c: Chain) -> None:
    c.add("Cast", [_moved(c, _cast(c))], last=True, to=onnx.TensorProto.FLOAT)


@TABLE.block("narrow", "QuantizeLinear", opset=19, alone=True)
def _quantized(c: Chain) -> None:
    """Quantize to few bits with one scale, one for each channel or each block, and back."""
    kind, shape = _kind(c), _shape(c)
    attributes: dict[str, Any] = {}
    scales: tuple[int, ...] = ()
    form = c.pick("tensor", "axis", "block") if len(shape) > 1 else "tensor"
    if form != "tensor":
        axis = c.random.randrange(len(shape))
        attributes["axis"] = axis
        scales = (shape[axis],)
        if form == "block" and c.opset >= 21 and shape[axis] > 1:
            attributes["block_size"] = block = c.pick(2, shape[axis])
            scales = tuple(-(-n // block) if k == axis else n for k, n in enumerate(shape))
    scale = c.constant(np.asarray(c.numbers.uniform(0.05, 0.4, scales)).astype(np.float32))
    if kind in INTEGERS:
        low, high = INTEGERS[kind]
        drawn = np.asarray(c.numbers.integers(low // 2, high // 2, scales, endpoint=True))
    else:
        drawn = np.zeros(scales, np.int64)
    zero = drawn.astype(onnx.helper.tensor_dtype_to_np_dtype(_number(kind)))
    inputs = [scale, c.constant(zero)]
    x = c.fed(c.floats(shape))
    quantized = c.add("QuantizeLinear", [x, *inputs], **attributes)
    if form == "tensor":
        quantized = _moved(c, quantized)
    c.add("DequantizeLinear", [quantized, *inputs], last=True, **attributes)
