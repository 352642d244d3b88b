"""Arrays of any library as plain numpy arrays, of the same memory wherever that is possible."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np

from narrowpass_ir.errors import DataError


def plain_array(value: Any, what: str) -> Any:
    """Return a value as a plain numpy array where it is an array, of whatever library.

    What has ``__array__`` (tensors of PyTorch, arrays of JAX, columns of pandas) or exports DLPack
    is viewed, and copied only where its library cannot do without. Tensors of PyTorch may be of
    types that numpy has through ``ml_dtypes`` alone, such as bfloat16.

    Args:
        value: an array, a list or tuple of these, or anything else.
        what: what messages call it.

    Returns:
        An array whose class is `numpy.ndarray` itself: operators of subclasses such as
        `numpy.matrix` differ. A list for a list or tuple. Anything else as it is, scalars of numpy
        included.

    Raises:
        DataError: an array whose library does not hand it over, such as one in the memory of a
            GPU, with the library's reason; a masked array with masked elements.
    """
    if type(value) is np.ndarray or isinstance(value, np.generic):
        return value
    if isinstance(value, list | tuple):
        return [plain_array(item, f"{what}, element {i},") for i, item in enumerate(value)]
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        raise DataError(
            f"{what} is a masked array, and some elements are masked; pass a plain one: "
            "value.filled(0) or another number"
        )
    if isinstance(value, np.ndarray):
        return value.view(np.ndarray)
    # A class has these; an instance of one that answers to any name has not.
    by_array = hasattr(type(value), "__array__")
    if not by_array and not hasattr(type(value), "__dlpack__"):
        return value
    try:
        if _is_narrow_tensor(value):
            return _view_of_bits(value)
        array = np.asarray(value) if by_array else np.from_dlpack(value)
    # Whatever a library raises: TypeError for a device, RuntimeError for gradients, BufferError.
    except Exception as error:
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(
            f"{what} is a {kind} that cannot be read as a numpy array: {reason}"
        ) from error
    return array.view(np.ndarray)


def plain_arrays(feeds: Mapping[str, Any], where: str) -> Mapping[str, Any]:
    """Return feeds as plain numpy arrays; the same mapping where all of them are.

    Args:
        feeds: values by the input's name, see `plain_array`.
        where: what takes them, for messages.

    Raises:
        DataError: as `plain_array`.
    """
    for value in feeds.values():
        if type(value) is not np.ndarray:
            return {
                name: plain_array(value, f"input {name!r} of {where}")
                for name, value in feeds.items()
            }
    return feeds


def is_fed(value: object) -> bool:
    """Return whether a value can be fed: an array, several for a sequence, None for an optional."""
    if isinstance(value, list | tuple):
        return all(map(is_fed, value))
    return value is None or isinstance(value, np.ndarray)


def _is_narrow_tensor(value: Any) -> bool:
    """Return whether it is a tensor of PyTorch in main memory, of a type of ``ml_dtypes``."""
    torch = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not value.requires_grad
        and hasattr(ml_dtypes, _type_name(value))
    )


def _view_of_bits(tensor: Any) -> np.ndarray[Any, Any]:
    """Return a tensor of one or two bytes an element, which PyTorch views as integers."""
    torch = sys.modules["torch"]
    bits = torch.uint8 if tensor.element_size() == 1 else torch.int16
    array: np.ndarray[Any, Any] = tensor.view(bits).numpy()
    return array.view(getattr(ml_dtypes, _type_name(tensor)))


def _type_name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
