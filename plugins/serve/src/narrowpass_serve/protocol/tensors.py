"""Arrays in the two forms of the protocol, lists of JSON and bytes, and its element types."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast

import ml_dtypes
import numpy as np

from narrowpass_ir.arguments import kind_of
from narrowpass_serve.errors import RequestError

BYTES = "BYTES"
"""The type of strings: UTF-8, for models."""

DTYPES: Mapping[str, np.dtype[np.generic]] = MappingProxyType(
    {
        "BOOL": np.dtype(np.bool_),
        "UINT8": np.dtype(np.uint8),
        "UINT16": np.dtype(np.uint16),
        "UINT32": np.dtype(np.uint32),
        "UINT64": np.dtype(np.uint64),
        "INT8": np.dtype(np.int8),
        "INT16": np.dtype(np.int16),
        "INT32": np.dtype(np.int32),
        "INT64": np.dtype(np.int64),
        "FP16": np.dtype(np.float16),
        "FP32": np.dtype(np.float32),
        "FP64": np.dtype(np.float64),
        "BF16": np.dtype(ml_dtypes.bfloat16),
    }
)
"""numpy's type by the protocol's name; all but `BYTES`."""

_NAMES = {"float16": "FP16", "float": "FP32", "double": "FP64", "bfloat16": "BF16", "string": BYTES}


def datatype_of(dtype: str | None, what: str) -> str:
    """Return the protocol's name of a type.

    Args:
        dtype: as ONNX names it in lower case.
        what: has it, for messages.

    Raises:
        RequestError: the protocol has no such type.
    """
    name = _NAMES.get(dtype or "", (dtype or "").upper())
    if name != BYTES and name not in DTYPES:
        raise RequestError(
            f"{what} is of type {dtype or 'unknown'}, which the protocol does not have; build the "
            "model with another type there"
        )
    return name


def datatype_of_array(array: object, what: str) -> str:
    """Return the protocol's name of the type of a result.

    Raises:
        RequestError: the protocol has no such type, or a sequence.
    """
    if not isinstance(array, np.ndarray):
        raise RequestError(f"{what} is no tensor, and the protocol has nothing else; leave it out")
    found: np.ndarray[Any, Any] = array
    if found.dtype == object or found.dtype.kind == "U":
        return BYTES
    name = next((name for name, dtype in DTYPES.items() if dtype == found.dtype), "")
    return name or datatype_of(str(found.dtype), what)


Array = np.ndarray[Any, Any]

MOST_JSON = 1 << 22
"""Elements of an output in JSON at most: a number takes ten times its bytes there, and more while
it is written."""

_PREFIX = 4
"""Bytes of the length before each element of `BYTES`, little-endian."""


def check_shape(shape: object, what: str) -> tuple[int, ...]:
    """Return a shape.

    Raises:
        RequestError: it is none.
    """
    if not isinstance(shape, list | tuple) or not all(
        isinstance(dim, int) and not isinstance(dim, bool) and dim >= 0 for dim in shape
    ):
        raise RequestError(f"{what}: `shape` must be a list of whole numbers, at least 0")
    return tuple(shape)


def from_json(datatype: str, shape: tuple[int, ...], data: object, what: str) -> Array:
    """Return the array of a list: flat, or nested as the shape is.

    Args:
        datatype: of the protocol.
        shape: of the array.
        data: the list.
        what: is read, for messages.

    Raises:
        RequestError: it is no list, of another number of elements, or of elements that the type
            does not have.
    """
    if not isinstance(data, list):
        raise RequestError(f"{what}: `data` must be a list, not {kind_of(data)}")
    if datatype == BYTES:
        strings = list(_flat(data))
        wrong = next((each for each in strings if not isinstance(each, str)), None)
        if wrong is not None:
            raise RequestError(f"{what}: an element of BYTES must be text, not {kind_of(wrong)}")
        return _shaped(_strings(strings), shape, what)
    try:
        array = np.array(data)
    except (ValueError, OverflowError) as error:
        raise RequestError(f"{what}: `data` is no array of numbers: {error!s:.200}") from error
    if not array.size:
        return _shaped(np.empty(0, DTYPES[datatype]), shape, what)
    if datatype == "UINT64" and array.dtype.kind in "fO":
        # numpy takes large and small whole numbers together for floating point ones.
        array = _whole(data, what).reshape(array.shape)
    if array.ndim > 1 and array.shape != shape:
        raise RequestError(
            f"{what}: `data` is nested as {list(array.shape)}, and `shape` is {list(shape)}"
        )
    return _shaped(_converted(array, datatype, what), shape, what)


def from_bytes(datatype: str, shape: tuple[int, ...], data: memoryview, what: str) -> Array:
    """Return the array of bytes, little-endian; it shares their memory.

    Raises:
        RequestError: of another number of elements, or strings that are none.
    """
    if datatype == BYTES:
        return _shaped(_strings(list(_split(data, what))), shape, what)
    dtype = DTYPES[datatype]
    wanted = math.prod(shape) * dtype.itemsize
    if len(data) != wanted:
        raise RequestError(
            f"{what}: {len(data)} bytes of data, where {datatype} {list(shape)} takes {wanted}"
        )
    if datatype == "BOOL":
        return _booleans(np.frombuffer(data, np.uint8), what).reshape(shape)
    return np.frombuffer(data, dtype).reshape(shape)


def to_json(array: Array, what: str) -> list[Any]:
    """Return the elements as a flat list.

    Raises:
        RequestError: elements that JSON has no form of, NaN and infinities; or too many.
    """
    if array.size > MOST_JSON:
        raise RequestError(
            f"{what} has {array.size} elements, too many for JSON; ask for it with the parameter "
            "binary_data",
            422,
        )
    if array.dtype == object or array.dtype.kind == "U":
        return [str(each) for each in array.flat]
    if array.dtype.kind in "iub":
        return list(array.ravel().tolist())
    # float64 has every number of the narrower types, so that JSON has the same.
    wide = array.ravel().astype(np.float64)
    if not np.isfinite(wide).all():
        raise RequestError(
            f"{what} has NaN or infinities, which JSON has not; ask for it with the parameter "
            "binary_data",
            422,
        )
    return list(wide.tolist())


def to_bytes(array: Array) -> bytes:
    """Return the elements as bytes, little-endian; strings with their lengths before them."""
    if array.dtype == object or array.dtype.kind == "U":
        return b"".join(_with_length(str(each).encode()) for each in array.flat)
    return np.ascontiguousarray(array).tobytes()


def _converted(array: Array, datatype: str, what: str) -> Array:
    """Return numbers of JSON in a narrower type, where it has them."""
    dtype = DTYPES[datatype]
    if datatype == "BOOL":
        if array.dtype.kind not in "biu":
            raise RequestError(f"{what}: an element of BOOL must be true or false")
        return array if array.dtype.kind == "b" else _booleans(array, what)
    if datatype.startswith(("INT", "UINT")):
        if array.dtype.kind not in "iu":
            raise RequestError(f"{what}: an element of {datatype} must be a whole number")
        limits: np.iinfo[Any] = np.iinfo(cast("Any", dtype))
        if int(array.min()) < limits.min or int(array.max()) > limits.max:
            raise RequestError(
                f"{what}: an element is out of the range of {datatype}: {limits.min} to "
                f"{limits.max}"
            )
        return array.astype(dtype)
    if array.dtype.kind not in "iuf":
        raise RequestError(f"{what}: an element of {datatype} must be a number")
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = array.astype(dtype)
    if (np.isfinite(array) & ~np.isfinite(narrow.astype(np.float64))).any():
        raise RequestError(f"{what}: an element is out of the range of {datatype}")
    return narrow


def _whole(data: list[Any], what: str) -> Array:
    flat = list(_flat(data))
    try:
        if any(type(each) is not int for each in flat):
            raise RequestError(f"{what}: an element of UINT64 must be a whole number")
        return np.array(flat, np.uint64)
    except OverflowError as error:
        raise RequestError(f"{what}: an element is out of the range of UINT64") from error


def _booleans(array: Array, what: str) -> Array:
    if array.size and (int(array.min()) < 0 or int(array.max()) > 1):
        raise RequestError(f"{what}: an element of BOOL must be 0 or 1")
    return array.astype(np.bool_)


def _shaped(flat: Array, shape: tuple[int, ...], what: str) -> Array:
    if flat.size != math.prod(shape):
        raise RequestError(
            f"{what}: {flat.size} elements of data, where `shape` {list(shape)} has "
            f"{math.prod(shape)}"
        )
    return flat.reshape(shape)


def _strings(values: list[Any]) -> Array:
    array = np.empty(len(values), object)
    array[:] = values
    return array


def _flat(data: list[Any]) -> Iterator[Any]:
    """Yield the elements of nested lists; nesting is bounded by the parser of JSON."""
    stack: list[Iterator[Any]] = [iter(data)]
    while stack:
        for each in stack[-1]:
            if isinstance(each, list):
                stack.append(iter(each))
                break
            yield each
        else:
            stack.pop()


def _split(data: memoryview, what: str) -> Iterator[str]:
    place = 0
    while place < len(data):
        length = int.from_bytes(data[place : place + _PREFIX], "little")
        start, place = place + _PREFIX, place + _PREFIX + length
        if place > len(data):
            raise RequestError(
                f"{what}: an element of BYTES is cut short; each is its length in {_PREFIX} "
                "bytes, little-endian, and its bytes"
            )
        try:
            yield bytes(data[start:place]).decode()
        except UnicodeDecodeError as error:
            raise RequestError(f"{what}: an element of BYTES is no UTF-8: {error}") from error


def _with_length(data: bytes) -> bytes:
    return len(data).to_bytes(_PREFIX, "little") + data


def strings_of(values: Iterable[bytes], what: str) -> Array:
    """Return an array of texts.

    Raises:
        RequestError: one is no UTF-8.
    """
    try:
        return _strings([each.decode() for each in values])
    except UnicodeDecodeError as error:
        raise RequestError(f"{what}: an element of BYTES is no UTF-8: {error}") from error
