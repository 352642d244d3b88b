"""Constants as recipes: what they are called, and how their elements are made when needed."""

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
    """What a weight is stored as: integers, each times a scale.

    Attributes:
        integers: of the weight's shape.
        scale: float32, of one element, or of one for each index of `axis`.
        zero: what is taken away from the integers first, of the scale's size; None for 0.
        axis: of the scales, where there are several.
    """

    integers: Weight
    scale: Weight
    zero: Weight | None
    axis: int

    def transpose(self, axes: Sequence[int]) -> Quantized:
        """Return what the transposed weight is stored as."""
        integers = self.integers.transpose(*axes)
        return dataclasses.replace(self, integers=integers, axis=axes.index(self.axis))

    def reshape(self, shape: Sequence[int]) -> Quantized | None:
        """Return what the weight is stored as in another shape; None where its axis is gone."""
        integers = self.integers.reshape(*shape)
        if self.scale.size == 1:
            return dataclasses.replace(self, integers=integers, axis=0) if shape else None
        channels = self.scale.size
        last = math.prod(self.integers.shape[: self.axis + 1])
        for axis, size in enumerate(shape):
            if channels and size % channels == 0 and math.prod(shape[: axis + 1]) == last:
                # Axes before that of the scales may have become part of it.
                scale, zero = (_tiled(each, size // channels) for each in (self.scale, self.zero))
                if scale is not None:
                    return Quantized(integers, scale, zero, axis)
        return None

    def times(self, factor: np.float32) -> Quantized:
        """Return what the weight times a number is stored as."""
        return dataclasses.replace(self, scale=self.scale.times(factor))


def _tiled(weight: Weight | None, count: int) -> Weight | None:
    if weight is None or count == 1:
        return weight
    return weight.then(
        f"tile {count}", lambda array: np.tile(array.reshape(-1), count), [weight.size * count]
    )


@dataclass(frozen=True, eq=False)
class Blocks:
    """What a matrix of few bits is stored as: integers of which blocks along rows share a scale.

    Attributes:
        integers: [rows, columns], of 2, 4 or 8 bits; of whole blocks, or fewer columns.
        scale: [rows, blocks], of any float.
        zero: what is subtracted from the integers first, as scales, of their type or of floats;
            None where it is `common`.
        size: of a block.
        columns: of the matrix.
        bits: of the integers.
        common: the zero point of all blocks.
        transposed: whether the weight is the transpose of this matrix.
    """

    integers: Weight
    scale: Weight
    zero: Weight | None
    size: int
    columns: int
    bits: int
    common: int = 0
    transposed: bool = False

    def times(self, factor: np.float32) -> Blocks:
        """Return what the weight times a number is stored as."""
        scale = self.scale.cast(np.dtype(np.float32)).times(factor)
        return dataclasses.replace(self, scale=scale)


@dataclass(frozen=True, eq=False)
class Weight:
    """A constant that is made when somebody needs its elements.

    Attributes:
        shape: of the elements.
        dtype: of the elements.
        identity: names the content: equal identities mean equal elements, shapes and types.
            Empty where nobody can tell without reading it.
        make: returns the elements. Where they have a name, they are compared with it.
        drop: takes what they were made from out of memory, as far as it can be read again.
        narrow: where this is another weight in a wider type: that weight.
        moved: where this is another weight with its axes in another order: that weight and the
            order.
        quantized: where it is made of integers and scales: these.
        blocks: where it is a matrix that is made of integers with scales for blocks: these.
        lying: gives the elements where they lie in a file, not compared with any name; None where
            they do not lie there as they are.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    identity: str
    make: Callable[[], Array]
    drop: Callable[[], None] = field(default=_nothing)
    narrow: Weight | None = None
    moved: tuple[Weight, tuple[int, ...]] | None = None
    quantized: Quantized | None = None
    blocks: Blocks | None = None
    lying: Callable[[], Array] | None = None

    @classmethod
    def of(cls, array: Array, identity: str = "") -> Weight:
        """Return a weight that is there already."""
        return cls(array.shape, array.dtype, identity, lambda: array)

    def array(self) -> Array:
        """Return the elements, dense.

        Raises:
            BackendError: they are of another shape or type than was said.
        """
        return self._dense(self.make())

    def view(self) -> Array:
        """Return the elements where they lie, dense, for who computes with them as they are.

        What is packed under a name takes `array` instead. Raises as that does.
        """
        return self._dense((self.lying or self.make)())

    def _dense(self, elements: Array) -> Array:
        array = np.ascontiguousarray(elements).reshape(self.shape)
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
        """Return what `function` makes of the elements.

        Args:
            recipe: names the function; with the identity, that of the result.
            function: applied when the elements are needed.
            shape: of the result; None for the same.
            dtype: of the result; None for the same.
        """
        return Weight(
            self.shape if shape is None else tuple(shape),
            self.dtype if dtype is None else dtype,
            digest(recipe, self.identity) if self.identity else "",
            lambda: function(self.make()),
            self.drop,
        )

    def cast(self, dtype: np.dtype[Any]) -> Weight:
        """Return the elements as another type."""
        if dtype == self.dtype:
            return self
        made = self.then(f"cast {dtype.name}", lambda array: array.astype(dtype), dtype=dtype)
        if dtype.itemsize > self.dtype.itemsize:
            return dataclasses.replace(
                made, narrow=self, quantized=self.quantized, blocks=self.blocks
            )
        return made

    def reshape(self, *shape: int) -> Weight:
        """Return the elements in another shape of as many."""
        if shape == self.shape:
            return self
        made = self.then(f"reshape {shape}", lambda array: array.reshape(shape), shape)
        known = None if self.quantized is None else self.quantized.reshape(shape)
        return dataclasses.replace(made, quantized=known, lying=self.lying)

    def transpose(self, *axes: int) -> Weight:
        """Return the elements with axis ``axes[i]`` in place i."""
        if axes == tuple(range(len(self.shape))):
            return self
        if self.moved is not None:
            source, before = self.moved
            return source.transpose(*(before[axis] for axis in axes))
        shape = [self.shape[axis] for axis in axes]
        made = self.then(f"transpose {axes}", lambda array: array.transpose(axes), shape)
        known = None if self.quantized is None else self.quantized.transpose(axes)
        blocks = self.blocks
        if blocks is not None:
            blocks = dataclasses.replace(blocks, transposed=not blocks.transposed)
        return dataclasses.replace(made, moved=(self, axes), quantized=known, blocks=blocks)

    def times(self, factor: np.float32) -> Weight:
        """Return the elements times a number."""
        if factor == 1:
            return self
        made = self.then(f"times {float(factor).hex()}", lambda array: array * factor)
        known = None if self.quantized is None else self.quantized.times(factor)
        blocks = None if self.blocks is None else self.blocks.times(factor)
        return dataclasses.replace(made, quantized=known, blocks=blocks)


def digest(*parts: object) -> str:
    """Return a name for a list of parts, as hexadecimal digits; equal for equal texts only."""
    texts = [str(part).encode() for part in parts]
    lengths = ",".join(str(len(text)) for text in texts).encode()
    return hashlib.sha256(lengths + b":" + b"".join(texts)).hexdigest()
