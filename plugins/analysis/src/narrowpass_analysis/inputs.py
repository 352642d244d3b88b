"""Inputs for a method: from files, or random ones of the shapes of its signature."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from narrowpass.cli.options import split_pair
from narrowpass.errors import DataError, UsageError
from narrowpass.runtime.backend import Outputs
from narrowpass_ir.arguments import suggest
from narrowpass_ir.data.feeds import FeedChecker
from narrowpass_ir.data.npz import READ_ERRORS

Array = np.ndarray[Any, Any]


def read_inputs(texts: Sequence[str], graph: ir.Graph) -> Outputs:
    """Read the values of ``--input``.

    Args:
        texts: each ``NAME=FILE.npy``, ``NAME=FILE.npz:ARRAY`` (without ``:ARRAY`` where the archive
            has one array), or ``FILE.npz`` with an array for each input.
        graph: the method's graph, which has the dtypes.

    Returns:
        Arrays by input name in this machine's byte order. Types that numpy lacks are stored
        upcast (`upcast_to_numpy`) and converted back here. All else is as in the files.

    Raises:
        UsageError: a text that is neither, an input given twice, a file that is not there.
        DataError: a file that cannot be read, or a value that does not fit its narrow type.
    """
    feeds: Outputs = {}
    for text in texts:
        for name, array in _read(text).items():
            if name in feeds:
                raise UsageError(f"--input has {name!r} twice; pass it once")
            feeds[name] = array
    types = {value.name: value.type for value in graph.inputs}
    return {name: _narrowed(name, array, types.get(name)) for name, array in feeds.items()}


def check_given(feeds: Mapping[str, Any], graph: ir.Graph, method: str) -> None:
    """Check that nothing is missing.

    Raises:
        DataError: an input that the method does not have: more likely a wrong name than one more.
        UsageError: with the name, dtype and shape of each input that needs an array.
    """
    FeedChecker.of(graph, method).check_names(feeds)
    missing = [v for v in graph.inputs if v.name not in feeds and not v.is_initializer()]
    if missing:
        raise UsageError(
            f"method {method!r} needs more inputs: {', '.join(map(describe_input, missing))}; "
            "pass --input NAME=FILE.npy for each"
        )


def files_of(texts: Sequence[str]) -> list[str]:
    """Return the files that values of ``--input`` may mean."""
    found = []
    for text in texts:
        file = text.partition("=")[2]
        found += [text, file, file.rpartition(":")[0]]
    return [file for file in found if file and _exists(Path(file))]


def _read(text: str) -> Mapping[str, Array]:
    if text.endswith(".npz") and "=" not in Path(text).name:
        path = Path(text)
        arrays = _load(path)
        if "" in arrays:
            raise DataError(f"{path}: holds one array without a name; pass --input NAME={path}")
        if not arrays:
            raise DataError(f"{path}: is an archive without arrays; save some with numpy.savez")
        return arrays
    name, file = split_pair("--input", text, _FORM)
    return {name: _one(name, file)}


def _one(name: str, file: str) -> Array:
    """Read the array of one input: a file, the only array of an archive, or one of its several."""
    archive, colon, chosen = file.rpartition(":")
    if colon and archive.endswith(".npz") and not _exists(Path(file)):
        path, arrays = Path(archive), _load(Path(archive))
        if chosen not in arrays:
            raise UsageError(
                f"--input {name}={file}: {path} has no array {chosen!r}{suggest(chosen, arrays)}; "
                f"it has {', '.join(arrays) or 'none'}"
            )
        return arrays[chosen]
    path, arrays = Path(file), _load(Path(file))
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    if not arrays:
        raise DataError(f"{path}: is an archive without arrays; save one with numpy.save")
    raise DataError(
        f"{path}: is an archive of several arrays ({', '.join(arrays)}); choose one with "
        f"--input {name}={path}:{next(iter(arrays))}, or pass all by their names: --input {path}"
    )


def _load(path: Path) -> Mapping[str, Array]:
    """Read an archive, or a file of one array, which has the empty name."""
    if not _exists(path):
        raise UsageError(f"--input: {path}: {_missing(path)}; pass a .npy or .npz file")
    try:
        # Opened here: numpy leaves a file open that turns out to be no archive.
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            if not isinstance(loaded, np.lib.npyio.NpzFile):
                return {"": _native(loaded)}
            # What is no array of numpy, such as a text file in the archive, is given as bytes.
            found: dict[str, Any] = {name: loaded[name] for name in loaded.files}
    except READ_ERRORS as error:
        raise DataError(f"{path}: cannot be read as numpy data: {_reason(error)}") from error
    return {name: _native(array) for name, array in found.items() if isinstance(array, np.ndarray)}


_FORM = "NAME=FILE.npy, NAME=FILE.npz:ARRAY, or FILE.npz"


def _exists(path: Path) -> bool:
    """Return whether a file to read is at `path`; nothing is at one that cannot be looked at."""
    return os.path.isfile(path)  # noqa: PTH113  # pathlib's raises where a name is too long


def _missing(path: Path) -> str:
    if os.path.isdir(path):  # noqa: PTH112  # as above
        return "is a folder"
    return "is no regular file" if os.path.lexists(path) else "there is no such file"


def _native(array: Array) -> Array:
    """Return an array in the byte order of this machine; a file may be in another."""
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    if "allow_pickle" in text or "pickled" in text:
        return "it is no array of numbers, or one of Python objects; save it with numpy.save"
    return text or type(error).__name__


def _narrowed(name: str, array: Array, kind: ir.TypeProtocol | None) -> Array:
    """Convert back what `upcast_to_numpy` does; string arrays become arrays of objects."""
    if not isinstance(kind, ir.TensorType):
        return array
    if kind.dtype == ir.DataType.STRING:
        return array.astype(object) if array.dtype.kind == "U" else array
    if kind.dtype == ir.DataType.UNDEFINED:
        return array
    target = kind.dtype.numpy()
    if target.kind in "biufc" and target.type.__module__ == "numpy":
        return array
    if array.dtype != _wide(target):
        return array  # the check of the feeds reports what it takes
    narrow = array.astype(target)
    if _wide(target).kind in "iu" and not np.array_equal(narrow.astype(array.dtype), array):
        raise DataError(f"input {name!r}: {array.dtype} values that {target} does not reach")
    return narrow


def _wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the numpy type that holds all values of a type of ml_dtypes."""
    try:
        info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return np.dtype(np.float32)
    return np.dtype(np.int8 if int(info.min) < 0 else np.uint8)


def upcast_to_numpy(array: Array) -> Array:
    """Return an array that every numpy can read from a file.

    bfloat16 and the types of 8 bits and less become float32, int4 and its like int8 or uint8:
    all values stay as they are. Strings become arrays of numpy's text type.
    """
    if array.dtype.kind == "O":
        return array.astype(str)
    if array.dtype.type.__module__ == "numpy":
        return array
    return array.astype(_wide(array.dtype))


def complete_inputs(
    given: Outputs,
    graph: ir.Graph,
    method: str,
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
) -> tuple[Outputs, list[str]]:
    """Add random arrays for the inputs that `given` lacks; see `random_inputs`.

    Symbolic dimensions have the sizes that the arrays given have.

    Raises:
        DataError: an array that does not fit its input.
        UsageError: a shape for an input whose array is given; or as in `random_inputs`.
    """
    checker = FeedChecker.of(graph, method)
    checker.check_names(given)
    for name in given:
        if name in shapes:
            raise UsageError(f"--shape and --input are both given for {name!r}; leave out --shape")
    random, notes = random_inputs(graph, shapes, seed, given)
    feeds = {**random, **given}
    if given:
        checker.check(feeds)
    return feeds, notes


def random_inputs(
    graph: ir.Graph,
    shapes: Mapping[str, tuple[int, ...]],
    seed: int,
    given: Mapping[str, Array] = MappingProxyType({}),
) -> tuple[Outputs, list[str]]:
    """Create an array for each input that has no default and is not `given`.

    Floating-point values are from a normal distribution; integers are 0 or 1, so that they are
    valid as masks and as indices into every table; those of 8 bits have their whole range.

    Args:
        graph: the method's graph.
        shapes: by input name, for inputs with dynamic dimensions. A symbolic dimension that one
            of them sets has that size in all inputs.
        seed: equal seeds produce equal arrays.
        given: arrays of other inputs; they set the sizes of symbolic dimensions, too.

    Returns:
        The arrays, and a note for each dimension that was taken as 1 for want of anything better.

    Raises:
        UsageError: a shape for an unknown input, or one that does not fit; an input whose shape
            is unknown, or that is no tensor.
    """
    inputs = {v.name or "": v for v in graph.inputs if v.name not in graph.initializers}
    sizes: dict[str, int] = {}
    for value in graph.inputs:
        _note_sizes(value, given.get(value.name or ""), sizes)
    inputs = {name: value for name, value in inputs.items() if name not in given}
    for name in shapes:
        if name not in inputs:
            raise UsageError(
                f"--shape: there is no input {name!r}{suggest(name, inputs)}; "
                f"inputs: {', '.join(map(describe_input, inputs.values())) or 'none'}"
            )
    for name, shape in shapes.items():
        _match(inputs[name], shape, sizes)
    rng = np.random.default_rng(seed)
    notes: list[str] = []
    feeds: Outputs = {}
    for name, value in inputs.items():
        dtype = _tensor_dtype(value)
        shape = shapes.get(name) or _default_shape(value, sizes, notes)
        feeds[name] = _random_array(rng, dtype, shape)
    return feeds, notes


def _note_sizes(value: ir.Value, array: Array | None, sizes: dict[str, int]) -> None:
    """Note the sizes of symbolic dimensions that a given array has."""
    shape = getattr(array, "shape", ())
    if value.shape is not None and len(shape) == len(value.shape):
        for dim, size in zip(value.shape, shape, strict=True):
            if not isinstance(dim, int) and dim.value is not None:
                sizes.setdefault(dim.value, size)


def _tensor_dtype(value: ir.Value) -> ir.DataType:
    if not isinstance(value.type, ir.TensorType):
        raise UsageError(
            f"input {value.name!r} is no tensor ({value.type}): random data cannot be generated; "
            "use the Python interface"
        )
    return value.type.dtype


def _match(value: ir.Value, shape: tuple[int, ...], sizes: dict[str, int]) -> None:
    """Check a given shape, and note the sizes of its symbolic dimensions."""
    if value.shape is None:
        return
    given = "x".join(map(str, shape))
    if len(shape) != len(value.shape):
        raise UsageError(
            f"--shape {value.name}={given}: {describe_input(value)} has {len(value.shape)} "
            f"dimensions, not {len(shape)}"
        )
    for axis, (dim, size) in enumerate(zip(value.shape, shape, strict=True)):
        if isinstance(dim, int):
            if dim != size:
                raise UsageError(
                    f"--shape {value.name}={given}: axis {axis} of {describe_input(value)} is "
                    f"{dim}, not {size}"
                )
        elif dim.value is not None and sizes.setdefault(dim.value, size) != size:
            raise UsageError(
                f"--shape {value.name}={given}: dimension {dim.value!r} is {size} here and "
                f"{sizes[dim.value]} elsewhere; pass sizes that agree"
            )


def _default_shape(value: ir.Value, sizes: dict[str, int], notes: list[str]) -> tuple[int, ...]:
    if value.shape is None:
        raise UsageError(
            f"the shape of input {value.name!r} is unknown; pass --shape {value.name}=..."
        )
    shape = []
    for axis, dim in enumerate(value.shape):
        if isinstance(dim, int):
            shape.append(dim)
        elif dim.value is not None and dim.value in sizes:
            shape.append(sizes[dim.value])
        else:
            known = dim.value is not None
            what = f"dimension {dim.value!r}" if known else f"axis {axis}"
            notes.append(f"{what} of input {value.name!r} is taken as 1; --shape sets it")
            if dim.value is not None:
                sizes[dim.value] = 1
            shape.append(1)
    return tuple(shape)


def _random_array(rng: np.random.Generator, dtype: ir.DataType, shape: tuple[int, ...]) -> Array:
    if dtype == ir.DataType.STRING:
        return np.full(shape, "text", dtype=object)
    target = dtype.numpy()
    if dtype.is_integer() and dtype.bitwidth == 8:
        info = np.iinfo(target)
        return rng.integers(info.min, info.max, shape, endpoint=True).astype(target)
    if dtype.is_integer() or dtype == ir.DataType.BOOL:
        return rng.integers(0, 2, shape).astype(target)
    values = rng.standard_normal(shape)
    if dtype == ir.DataType.FLOAT8E8M0:  # powers of two, without a sign
        values = np.abs(values)
    if target.kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return np.asarray(values).astype(target)


def describe_input(value: ir.Value) -> str:
    """Return ``name (float32[batch, 3])``."""
    kind = value.type
    dtype = kind.dtype.name.lower() if isinstance(kind, ir.TensorType) else str(kind)
    return f"{value.name} ({dtype}{shape_text(value)})"


def shape_text(value: ir.Value) -> str:
    """Return ``[batch, 3]``, with ``?`` for unknown dimensions; empty for an unknown rank."""
    if value.shape is None:
        return ""
    return (
        "[" + ", ".join(str(d) if isinstance(d, int) else d.value or "?" for d in value.shape) + "]"
    )
