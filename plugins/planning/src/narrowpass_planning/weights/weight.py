"""Lazy constants: a content name, and a recipe that computes the elements when they are needed."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from narrowpass.errors import BackendError

Array = np.ndarray[Any, Any]


def _nothing() -> None:
    return None


@dataclass(frozen=True, eq=False)
class Quantized:
    """The quantized storage of a weight, per tensor or per channel.

    Attributes:
        integers: of the weight's shape.
        scale: float32, one element, or one for each index of `axis`.
        zero: zero points, of the scale's size; None for 0.
        axis: the per-channel axis, where there are several scales.
    """

    integers: Weight
    scale: Weight
    zero: Weight | None
    axis: int

    def transpose(self, axes: Sequence[int]) -> Quantized:
        """Return the storage of the transposed weight."""
        integers = self.integers.transpose(*axes)
        return dataclasses.replace(self, integers=integers, axis=axes.index(self.axis))

    def reshape(self, shape: Sequence[int]) -> Quantized | None:
        """Return the storage of the reshaped weight; None where the channel axis is lost."""
        integers = self.integers.reshape(*shape)
        if self.scale.size == 1:
            return dataclasses.replace(self, integers=integers, axis=0) if shape else None
        channels = self.scale.size
        last = math.prod(self.integers.shape[: self.axis + 1])
        for axis, size in enumerate(shape):
            if channels and size % channels == 0 and math.prod(shape[: axis + 1]) == last:
                # Axes before that of the scales may have become part of it.
                count = size // channels
                zero = None if self.zero is None else _tiled(self.zero, count)
                return Quantized(integers, _tiled(self.scale, count), zero, axis)
        return None

    def times(self, factor: np.float32) -> Quantized:
        """Return the storage of the weight times a number."""
        return dataclasses.replace(self, scale=self.scale.times(factor))


def _tiled(weight: Weight, count: int) -> Weight:
    if count == 1:
        return weight
    return weight.then(
        f"tile {count}", lambda array: np.tile(array.reshape(-1), count), [weight.size * count]
    )


@dataclass(frozen=True, eq=False)
class Blocks:
    """The storage of a block-quantized matrix.

    Attributes:
        integers: [rows, columns], of 2, 4 or 8 bits, or of float8, which has no zero points;
            padding beyond `columns` is allowed up to the end of the last block.
        scale: [rows, blocks], of any floating-point type.
        zero: zero points, of the scale's shape, integers or floats; None where all are `common`.
        size: elements of a block.
        columns: of the matrix.
        bits: of an integer: 2, 4 or 8; 8 of float8.
        common: the zero point of all blocks.
        transposed: whether the weight is the transpose of this matrix, or of each of these.
        matrices: how many matrices of equally many rows lie one below the other; the weight has
            three axes where there are several.
    """

    integers: Weight
    scale: Weight
    zero: Weight | None
    size: int
    columns: int
    bits: int
    common: int = 0
    transposed: bool = False
    matrices: int = 1

    @property
    def element(self) -> str:
        """The type of an element as reports name it: ``int4``, whatever its sign, or float8's."""
        name = self.integers.dtype.name
        return name if name.startswith("float8") else f"int{self.bits}"

    def times(self, factor: np.float32) -> Blocks:
        """Return what the weight times a number is stored as."""
        scale = self.scale.cast(np.dtype(np.float32)).times(factor)
        return dataclasses.replace(self, scale=scale)


@dataclass(frozen=True, eq=False)
class Weight:
    """A constant whose elements are computed when they are needed.

    Attributes:
        shape: of the elements.
        dtype: of the elements.
        identity: the content name: equal identities mean equal elements, shapes and types. Empty
            where it is unknown without reading the elements.
        compute: returns the elements, which are compared with the hash that names them, if any.
        drop: evicts the sources of the elements from memory, where they can be read again.
        narrow: the weight that this one is an upcast of; None where it is none.
        permuted_from: the weight and the axes that this one is a transpose of; None where it is
            none.
        quantized: the storage, where this is a dequantized weight.
        blocks: the storage, where this is a dequantized block-quantized matrix.
        stored: the dtype of the integers, or of float8, that this is dequantized from; empty for
            others.
        unchecked: returns the elements from their file without a comparison with their hash; None
            where no file has them in this form.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    identity: str
    compute: Callable[[], Array]
    drop: Callable[[], None] = field(default=_nothing)
    narrow: Weight | None = None
    permuted_from: tuple[Weight, tuple[int, ...]] | None = None
    quantized: Quantized | None = None
    blocks: Blocks | None = None
    unchecked: Callable[[], Array] | None = None
    stored: str = ""

    @classmethod
    def of(cls, array: Array, identity: str = "") -> Weight:
        """Return a weight of an array."""
        return cls(array.shape, array.dtype, identity, lambda: array)

    def array(self) -> Array:
        """Return the elements, dense and aligned.

        Raises:
            BackendError: their shape or type differs from the weight's.
        """
        return self._dense(self.compute())

    def checked(self, check: Callable[[Array], None]) -> Weight:
        """Return the same constant, of the same identity, whose elements are checked when loaded.

        Args:
            check: raises for elements that are not supported; called with a dense array.
        """

        def load() -> Array:
            array = np.ascontiguousarray(self.compute())
            check(array)
            return array

        return dataclasses.replace(self, compute=load)

    def view(self) -> Array:
        """Return the elements, dense and aligned, from their file without a copy where possible.

        They are not compared with their hash; packing under a content name uses `array` instead.
        Raises as that does.
        """
        return self._dense((self.unchecked or self.compute)())

    def _dense(self, elements: Array) -> Array:
        # A file may have them anywhere: C reads elements at multiples of their size only.
        array = np.require(elements, requirements=("C", "A")).reshape(self.shape)
        if array.dtype != self.dtype:
            raise BackendError(f"a weight of {array.dtype} was to be one of {self.dtype}")
        return array

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The bytes of the elements."""
        return self.size * self.dtype.itemsize

    def then(
        self,
        recipe: str,
        function: Callable[[Array], Array],
        shape: Sequence[int] | None = None,
        dtype: np.dtype[Any] | None = None,
    ) -> Weight:
        """Return a weight that applies `function` to the elements.

        Args:
            recipe: a name of the function; with this weight's identity it names the result.
            function: called when the elements are needed.
            shape: of the result; None for the same.
            dtype: of the result; None for the same.
        """
        return Weight(
            self.shape if shape is None else tuple(shape),
            self.dtype if dtype is None else dtype,
            digest(recipe, self.identity) if self.identity else "",
            lambda: function(self.compute()),
            self.drop,
        )

    def cast(self, dtype: np.dtype[Any]) -> Weight:
        """Return the weight cast to another type."""
        if dtype == self.dtype:
            return self
        result = self.then(f"cast {dtype.name}", lambda array: array.astype(dtype), dtype=dtype)
        if dtype.itemsize > self.dtype.itemsize:
            return dataclasses.replace(
                result,
                narrow=self,
                quantized=self.quantized,
                blocks=self.blocks,
                stored=self.stored,
            )
        return result

    def reshape(self, *shape: int) -> Weight:
        """Return the reshaped weight."""
        if shape == self.shape:
            return self
        result = self.then(f"reshape {shape}", lambda array: array.reshape(shape), shape)
        known = None if self.quantized is None else self.quantized.reshape(shape)
        return dataclasses.replace(result, quantized=known, unchecked=self.unchecked)

    def transpose(self, *axes: int) -> Weight:
        """Return the transposed weight, whose axis i is axis ``axes[i]`` of this one."""
        if axes == tuple(range(len(self.shape))):
            return self
        if self.permuted_from is not None:
            source, before = self.permuted_from
            return source.transpose(*(before[axis] for axis in axes))
        shape = [self.shape[axis] for axis in axes]
        result = self.then(f"transpose {axes}", lambda array: array.transpose(axes), shape)
        known = None if self.quantized is None else self.quantized.transpose(axes)
        blocks = self.blocks
        if blocks is not None:
            # Of several matrices, each is transposed.
            swapped = dataclasses.replace(blocks, transposed=not blocks.transposed)
            blocks = swapped if axes in ((1, 0), (0, 2, 1)) else None
        return dataclasses.replace(
            result,
            permuted_from=(self, axes),
            quantized=known,
            blocks=blocks,
            stored=self.stored,
        )

    def times(self, factor: np.float32) -> Weight:
        """Return the weight times a number."""
        if factor == 1:
            return self
        result = self.then(f"times {float(factor).hex()}", lambda array: array * factor)
        known = None if self.quantized is None else self.quantized.times(factor)
        blocks = None if self.blocks is None else self.blocks.times(factor)
        return dataclasses.replace(result, quantized=known, blocks=blocks, stored=self.stored)


def digest(*parts: object) -> str:
    """Return the SHA-256, hexadecimal, of a list of parts; lengths separate their texts."""
    texts = [str(part).encode() for part in parts]
    lengths = ",".join(str(len(text)) for text in texts).encode()
    return hashlib.sha256(lengths + b":" + b"".join(texts)).hexdigest()
