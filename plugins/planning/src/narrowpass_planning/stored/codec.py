"""Values of lowered plans as JSON, and back: records, slots, and constants by content.

Numbers, strings, booleans and None are themselves; anything else is a list whose first element says
what it is:

=====  =============================  ==================================================
``t``  elements                       a tuple
``l``  elements                       a list
``c``  class name, fields             a dataclass, with its fields in order
``s``  index                          a slot of the table
``w``  index                          a weight of the table
``a``  dtype, shape, base64           an array, or a scalar of numpy where the shape is None
``m``  dtype, shape, key              an array whose bytes are a tensor of the bundle
``b``  base64                         bytes
``d``  name                           a dtype
=====  =============================  ==================================================
"""

from __future__ import annotations

import base64
import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import ml_dtypes
import numpy as np

from narrowpass_planning.plan.step import Slot
from narrowpass_planning.stored.storage import NotStorableError, StaleError
from narrowpass_planning.stored.tensors import NamedTensors
from narrowpass_planning.weights.weight import Blocks, Quantized, Weight

Array = np.ndarray[Any, Any]
Classes = Mapping[str, type[Any]]

_SMALL = 1 << 12
"""Bytes of an array that are stored without a look for an equal tensor of the bundle."""

LARGEST = 1 << 20
"""Bytes of an array, computed from constants, that are stored."""

_PLAIN = (bool, int, float, str, type(None))


@dataclass(frozen=True)
class _Class:
    """A dataclass, and the names of the fields that it is created from."""

    type: type[Any]
    fields: tuple[str, ...]


def _known(classes: Classes) -> dict[str, _Class]:
    every = {"Blocks": Blocks, "Quantized": Quantized, **classes}
    return {
        name: _Class(each, tuple(field.name for field in dataclasses.fields(each) if field.init))
        for name, each in every.items()
    }


class Encoder:
    """Encodes values; slots and weights go to tables, each once.

    Args:
        tensors: of the bundle.
        classes: the dataclasses that values may have, by name.

    Attributes:
        slots: rows of the table of slots: name, dtype, and the constant or None.
        weights: rows of the table of weights.
        copies_much: whether an array that is stored itself is not small.
    """

    def __init__(self, tensors: NamedTensors, classes: Classes) -> None:
        self._tensors = tensors
        self._classes = _known(classes)
        self.slots: list[Any] = []
        self.weights: list[Any] = []
        self.copies_much = False
        self._slots: dict[Slot, int] = {}
        self._weights: dict[int, tuple[int, Weight]] = {}  # kept alive, as ids name them

    def value(self, value: Any) -> Any:
        """Return a value as JSON.

        Raises:
            NotStorableError: a type that the format does not have.
        """
        if type(value) in _PLAIN:
            return value
        if isinstance(value, tuple | list):
            tag = "t" if isinstance(value, tuple) else "l"
            return [tag, [self.value(each) for each in value]]
        if isinstance(value, Slot):
            return ["s", self.slot(value)]
        if isinstance(value, Weight):
            return ["w", self.weight(value)]
        if isinstance(value, np.ndarray):
            return self.array(value)
        if isinstance(value, np.generic):
            return ["a", value.dtype.name, None, _text(np.array(value))]
        if isinstance(value, bytes):
            return ["b", base64.b64encode(value).decode()]
        if isinstance(value, np.dtype):
            return ["d", value.name]
        name = type(value).__name__
        known = self._classes.get(name)
        if known is None or known.type is not type(value):
            raise NotStorableError(f"a {name} has no stored form")
        return ["c", name, [self.value(getattr(value, field)) for field in known.fields]]

    def slot(self, slot: Slot) -> int:
        """Return the index of a slot in the table."""
        index = self._slots.get(slot)
        if index is None:
            constant = None if slot.constant is None else self.array(slot.constant)
            index = self._slots[slot] = len(self.slots)
            self.slots.append([slot.name, slot.dtype.name, constant])
        return index

    def array(self, array: Array) -> Any:
        """Return an array: its bytes, or the tensor of the bundle that has them."""
        if array.dtype.hasobject:
            raise NotStorableError("texts have no stored form")
        shape = list(array.shape)
        key = self._tensors.key_of(array) if array.nbytes > _SMALL else None
        if key is not None:
            return ["m", array.dtype.name, shape, key]
        if array.nbytes > LARGEST:
            raise NotStorableError(f"a constant of {array.nbytes} bytes is computed")
        self.copies_much |= array.nbytes > _SMALL
        return ["a", array.dtype.name, shape, _text(array)]

    def weight(self, weight: Weight) -> int:
        """Return the index of a weight in the table: its name, storage and, if small, elements."""
        known = self._weights.get(id(weight))
        if known is not None:
            return known[0]
        if not weight.identity:
            raise NotStorableError("a weight has no content name")
        elements: Any = self._tensors.key_named(weight.identity)
        if elements is None and weight.nbytes <= _SMALL:
            elements = self.array(weight.array())
        row = [
            list(weight.shape),
            weight.dtype.name,
            weight.identity,
            weight.stored,
            elements,
            self.value(weight.narrow),
            self.value(weight.permuted_from),
            self.value(weight.quantized),
            self.value(weight.blocks),
        ]
        index = len(self.weights)
        self._weights[id(weight)] = index, weight
        self.weights.append(row)  # after those that it refers to
        return index


def _text(array: Array) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


class Decoder:
    """Decodes what an `Encoder` has encoded.

    Args:
        tensors: of the bundle.
        classes: as the encoder's.
        slots: the table of slots.
        weights: the table of weights.

    Raises:
        StaleError: a constant that is not there.
    """

    def __init__(
        self, tensors: NamedTensors, classes: Classes, slots: list[Any], weights: list[Any]
    ) -> None:
        self._tensors = tensors
        self._classes = _known(classes)
        self.weights: list[Weight] = []
        for row in weights:
            self.weights.append(self._weight(*row))
        self.slots = [
            Slot(name, dtype_of(dtype), None if constant is None else self.value(constant))
            for name, dtype, constant in slots
        ]

    def value(self, stored: Any) -> Any:
        """Return the value of its stored form."""
        if type(stored) is not list:
            return stored
        kind = stored[0]
        if kind == "t":
            return tuple(self._values(stored[1]))
        if kind == "s":
            return self.slots[stored[1]]
        if kind == "c":
            known = self._classes[stored[1]]
            values = self._values(stored[2])
            return known.type(**dict(zip(known.fields, values, strict=True)))
        if kind == "w":
            return self.weights[stored[1]]
        if kind in "am":
            return self._array(*stored)
        if kind == "l":
            return self._values(stored[1])
        return base64.b64decode(stored[1]) if kind == "b" else dtype_of(stored[1])

    def _values(self, stored: list[Any]) -> list[Any]:
        # Most are numbers and None, which a call would only return.
        return [self.value(each) if type(each) is list else each for each in stored]

    def _array(self, kind: str, name: str, shape: list[int] | None, content: str) -> Any:
        dtype = dtype_of(name)
        if kind == "m":
            array = self._tensors.tensor(content).numpy()
            return array.reshape(-1).view(dtype).reshape(shape)
        array = np.frombuffer(base64.b64decode(content), dtype).copy()
        return array[0] if shape is None else array.reshape(shape)

    def _weight(
        self,
        shape: list[int],
        dtype: str,
        identity: str,
        stored: str,
        elements: Any,
        *storage: Any,
    ) -> Weight:
        narrow, permuted_from, quantized, blocks = map(self.value, storage)
        known = Weight(
            tuple(shape),
            dtype_of(dtype),
            identity,
            functools.partial(_not_packed, identity),
            narrow=narrow,
            permuted_from=permuted_from,
            quantized=quantized,
            blocks=blocks,
            stored=stored,
        )
        if isinstance(elements, str):
            tensor = self._tensors.tensor(elements)
            return dataclasses.replace(
                known, compute=tensor.checked, drop=tensor.drop, unchecked=tensor.numpy
            )
        if elements is not None:
            array = self.value(elements)
            return dataclasses.replace(known, compute=lambda: array)
        return known


def _not_packed(identity: str) -> NoReturn:
    raise StaleError(f"the elements of weight {identity} are needed: they are not packed yet")


@functools.cache
def dtype_of(name: str) -> np.dtype[Any]:
    """Return the dtype of a name, including those of ml_dtypes."""
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)
