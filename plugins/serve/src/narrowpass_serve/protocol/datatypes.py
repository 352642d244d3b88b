"""The protocol's names of element types."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import ml_dtypes
import numpy as np

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
