"""Analysis of a graph that is compiled: constants, element types, ranks, users."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from narrowpass_ir.io import MappedTensor, ViewedTensor
from narrowpass_planning.weights.names import identity_of
from narrowpass_planning.weights.weight import Weight

Array = np.ndarray[Any, Any]
Dims = tuple[int | str | None, ...]

NARROW = {ir.DataType.FLOAT16, ir.DataType.BFLOAT16}
"""Types of storage whose arithmetic is float32."""

SMALL = 1 << 16
"""Elements up to which a constant's value may be looked at to decide something."""


def _nothing() -> None:
    return None


def _texts(tensor: ir.TensorProtocol) -> Array:
    """Return strings as numpy's kernels take them: str in an array of objects."""
    listed = [x.decode() if isinstance(x, bytes) else x for x in tensor.numpy().ravel()]
    return np.array(listed, object).reshape(tuple(tensor.shape.numpy()))


class Facts:
    """The analysis of a graph: constants, element types, dimensions and users of its values.

    Args:
        graph: with types and shapes as far as they could be inferred.
        kept: names of values that must be readable beside the outputs.
        overridden: names of initializers that are fed in each run: no constants.
        identities: names of the contents of tensors, by their ``id``, or what the graph around
            this one knows of them; see `Weight.identity`. None: nothing has a name.
        observed: names of values whose statistics are taken in place, without a copy.

    Attributes:
        given: names of the outputs and the kept values.
        observed: names of those whose statistics are taken in place.
        needed: names of both: values that are read outside of the graph.
        names: of dimensions of the inputs; those of one name have one size.
        fixed: names of values that follow from shapes and constants alone, and are small.
    """

    def __init__(
        self,
        graph: ir.Graph,
        kept: Iterable[str] = (),
        overridden: Iterable[str] = (),
        identities: Mapping[int, str | Weight] | None = None,
        observed: Iterable[str] = (),
    ) -> None:
        self.graph = graph
        self.given = {value.name or "" for value in graph.outputs} | set(kept)
        self.observed = set(observed)
        self.needed = self.given | self.observed
        self.fixed: set[str] = set()
        self.names = {
            dim.value
            for value in graph.inputs
            for dim in value.shape or ()
            if not isinstance(dim, int) and dim.value
        }
        fed = set(overridden)
        self._constants = {
            name: value.const_value
            for name, value in graph.initializers.items()
            if name not in fed and value.const_value is not None
        }
        self._arrays: dict[str, Array] = {}
        self._shapes: dict[str, Dims] = {}
        self._derived: dict[str, Weight] = {}
        self._identities = identities
        self._hashes: dict[int, str] = {}

    def derive(self, value: ir.Value, weight: Weight) -> None:
        """Record that a value is a constant, which is computed when its elements are read."""
        self._derived[value.name or ""] = weight

    def is_constant(self, value: ir.Value | None) -> bool:
        """Return whether `value` is an initializer that is not fed."""
        return value is not None and (value.name in self._constants or value.name in self._derived)

    def constant(self, value: ir.Value | None) -> Array | None:
        """Return the elements of a constant; None where `value` is none."""
        if value is None or value.name is None or not self.is_constant(value):
            return None
        if value.name in self._derived:
            return self._derived[value.name].view()
        array = self._arrays.get(value.name)
        if array is None:
            array = self._constants[value.name].numpy()
            if array.size <= SMALL:
                self._arrays[value.name] = array
        return array

    def array(self, value: ir.Value | None) -> Array:
        """Return the elements of a constant; an error where `value` is none."""
        array = self.constant(value)
        if array is None:
            raise ValueError(f"{None if value is None else value.name!r} is not a constant")
        return array

    def wide(self, value: ir.Value | None) -> Array:
        """Return the elements of a constant; float32 for float16 and bfloat16."""
        array = self.array(value)
        return array.astype(np.float32) if self.dtype(value) in NARROW else array

    def stored(self, value: ir.Value) -> Weight:
        """Return the weight of a constant, of its stored type."""
        name = value.name or ""
        if name in self._derived:
            return self._derived[name]
        return self._of(self._constants[name])

    def _of(self, tensor: ir.TensorProtocol) -> Weight:
        known = "" if self._identities is None else self._identities.get(id(tensor), "")
        if isinstance(known, Weight):
            return known
        if isinstance(tensor, ViewedTensor):
            view, shape = tensor.of, tuple(tensor.shape.numpy())
            recipe = f"view {tensor.dtype} {shape}"
            return self._of(tensor.source).then(recipe, view, shape, tensor.dtype.numpy())
        if not known and self._identities is not None and isinstance(tensor, ir.Tensor):
            # What an operator was expanded to is small, and in memory: it is named by its bytes.
            if id(tensor) not in self._hashes:
                self._hashes[id(tensor)] = identity_of(tensor)
            known = self._hashes[id(tensor)]
        compute = unchecked = tensor.numpy
        if tensor.dtype == ir.DataType.STRING:
            compute = unchecked = functools.partial(_texts, tensor)
        if known and isinstance(tensor, MappedTensor) and tensor.sha256 is not None:
            compute = tensor.checked
        # A recipe refers to its tensor, and not to `self`, which has all the others too.
        return Weight(
            tuple(tensor.shape.numpy()),
            tensor.dtype.numpy(),
            known,
            compute,
            getattr(tensor, "drop", _nothing),
            unchecked=unchecked,
        )

    def weight(self, value: ir.Value) -> Weight:
        """Return the weight of a constant, in float32."""
        return self.stored(value).cast(np.dtype(np.float32))

    def constants(self) -> dict[str, ir.Value]:
        """Return all constants by name."""
        found = {name: self.graph.initializers[name] for name in self._constants}
        for node in self.graph:
            found.update((v.name, v) for v in node.outputs if v.name and v.name in self._derived)
        return found

    def scalar(self, value: ir.Value | None) -> float | None:
        """Return the element of a constant of shape [] or [1]; None where `value` is no such."""
        dims = self.dims(value) if self.is_constant(value) else None
        if dims not in ((), (1,)):
            return None
        array = self.wide(value)
        return float(array.reshape(())[()]) if array.dtype.kind in "fiub" else None

    def is_fixed(self, value: ir.Value | None) -> bool:
        """Return whether the elements are known once shapes are: constant, or from shapes."""
        return value is not None and (self.is_constant(value) or value.name in self.fixed)

    def is_float(self, value: ir.Value | None) -> bool:
        """Return whether a value is computed with in float32."""
        dtype = self.dtype(value)
        return dtype == ir.DataType.FLOAT or dtype in NARROW

    @staticmethod
    def dtype(value: ir.Value | None) -> ir.DataType | None:
        """Return the element type; None where it is not known or `value` is no tensor."""
        if value is None:
            return None
        if value.dtype is None and value.const_value is not None:
            return value.const_value.dtype
        return value.dtype if isinstance(value.type, ir.TensorType) else None

    def rank(self, value: ir.Value | None) -> int | None:
        """Return the number of dimensions; None where it is not known."""
        dims = self.dims(value)
        return None if dims is None else len(dims)

    def dims(self, value: ir.Value | None) -> Dims | None:
        """Return the dimensions: numbers, names, or None for those of which nothing is known."""
        if value is None:
            return None
        if value.const_value is not None and self.is_constant(value):
            name = value.name or ""
            if name not in self._shapes:
                self._shapes[name] = tuple(value.const_value.shape.numpy())
            return self._shapes[name]
        if value.shape is None:
            return None
        return tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape.dims)

    def only_user(self, value: ir.Value) -> ir.Node | None:
        """Return the node that alone reads `value`, once; None where others do too."""
        if value.name in self.needed:
            return None
        uses = value.uses()
        if len(uses) != 1:
            return None
        node = next(iter(uses)).node
        return node if node.graph is self.graph else None
