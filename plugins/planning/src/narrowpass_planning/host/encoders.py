"""Numpy kernels: LabelEncoder and OneHotEncoder of ai.onnx.ml."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from narrowpass_planning.graph.op import Op

Array = np.ndarray[Any, Any]
Kernel = Callable[..., Any]


_TEXT = "OU"
"""Kinds of numpy's arrays of strings: callers may feed both."""


class Places:
    """Finds the index of each element among keys; the first one of equal keys.

    Args:
        keys: of one axis; strings are objects.
        nan: whether NaN is a key that NaN equals.
    """

    def __init__(self, keys: Array, *, nan: bool = True) -> None:
        self._nan = nan and keys.dtype.kind == "f"
        self._known: dict[Any, int] | None = None
        if keys.dtype == object:
            listed = keys.tolist()
            self._known = {key: at for at, key in reversed(list(enumerate(listed)))}
            return
        # numpy sorts NaN last, and finds it there; it equals nothing.
        self._sorted, self._first = np.unique(keys, return_index=True)

    def __call__(self, x: Array) -> Array:
        """Return the place of each element of `x`, -1 where it is no key: [x.shape], int64."""
        if self._known is not None:
            found = [self._known.get(item, -1) for item in x.reshape(-1).tolist()]
            return np.array(found, np.int64).reshape(x.shape)
        if not self._sorted.size:
            return np.full(x.shape, -1, np.int64)
        x = x.astype(self._sorted.dtype, copy=False)
        at = np.minimum(np.searchsorted(self._sorted, x), self._sorted.size - 1)
        near = self._sorted[at]
        equal = near == x
        if self._nan:
            equal |= np.isnan(near) & np.isnan(x)
        return np.where(equal, self._first[at], -1)


_TYPES: tuple[tuple[str, Any, Any], ...] = (
    ("string", object, "_Unused"),
    ("int64", np.int64, -1),
    ("float", np.float32, -0.0),
)
"""Of lists of attributes: the name, the type of its elements, and what is for no key."""


def label_encoder(op: Op) -> Kernel:
    """Return LabelEncoder: a dictionary with a default. From version 4 on NaN may be a key.

    Raises:
        KeyError: no keys or values, or not as many of one as of the other.
    """
    labels = op.get("classes_strings", None)
    if labels is not None:  # version 1: strings to places, and back
        return _numbered(np.array(labels, object), op)
    keys, values = _listed(op, "keys"), _listed(op, "values")
    if keys.size != values.size or not keys.size:
        raise KeyError(f"{keys.size} keys and {values.size} values")
    places = Places(keys, nan=op.version >= 4)
    choices = np.append(values, _default(op, values.dtype))
    return lambda x: choices[places(x)]  # the last one is at -1


def _numbered(labels: Array, op: Op) -> Kernel:
    places, missing = Places(labels), np.int64(op.get("default_int64", -1))
    names = np.append(labels, np.array([op.get("default_string", "_Unused")], object))

    def run(x: Array) -> Array:
        if x.dtype.kind in _TEXT:
            found = places(x)
            return np.where(found < 0, missing, found)
        return names[np.where((x >= 0) & (x < labels.size), x, labels.size)]

    return run


def _listed(op: Op, name: str) -> Array:
    tensor = op.get(f"{name}_tensor", None)
    if tensor is not None:
        return _typed(tensor.numpy().reshape(-1))
    for kind, dtype, _ in _TYPES:
        given = op.get(f"{name}_{kind}s", None)
        if given is not None:
            return np.array(given, dtype)
    raise KeyError(f"{name} of no type that is known")


def _typed(array: Array) -> Array:
    if array.dtype != object:
        return array
    texts = [item.decode() if isinstance(item, bytes) else item for item in array.tolist()]
    return np.array(texts, object)


def _default(op: Op, dtype: np.dtype[Any]) -> Array:
    tensor = op.get("default_tensor", None)
    if tensor is not None:
        return _typed(tensor.numpy().reshape(-1)[:1]).astype(dtype)
    if op.get("values_tensor", None) is not None:
        usual: Any = {"O": "_Unused", "f": -0.0}.get(dtype.kind, -1)
        return np.array([usual], dtype)
    kind, _, usual = next(item for item in _TYPES if np.dtype(item[1]) == dtype)
    return np.array([op.get(f"default_{kind}", usual)], dtype)


def one_hot_encoder(op: Op) -> Kernel:
    """Return OneHotEncoder: float32 [*x.shape, categories].

    An unknown category is a row of zeros, or an error where the attribute ``zeros`` is 0.
    Numbers are cut to integers, as in onnxruntime.

    Raises:
        KeyError: no categories are given.
    """
    texts, numbers = op.get("cats_strings", None), op.get("cats_int64s", None)
    if not texts and not numbers:
        raise KeyError("no categories")
    categories = np.array(texts, object) if texts else np.array(numbers, np.int64)
    places, lenient = Places(categories), bool(op.get("zeros", 1))
    rows = np.concatenate([np.eye(categories.size), np.zeros((1, categories.size))])
    rows = rows.astype(np.float32)

    def run(x: Array) -> Array:
        if (x.dtype.kind in _TEXT) != bool(texts):
            raise TypeError("the categories are of another type than the input")
        found = places(x if texts else x.astype(np.int64))
        if not lenient and (found < 0).any():
            raise ValueError("an element of its input is none of its categories")
        return rows[found]

    return run
