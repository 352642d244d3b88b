"""Content names of the weights of a bundle, from the hashes of its manifest."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING

import onnx_ir as ir

from narrowpass_ir.io import MappedTensor
from narrowpass_ir.subgraphs import nested_graphs
from narrowpass_planning.weights.weight import digest

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle


def key_of(bundle: Bundle) -> str | None:
    """Name the set of weights that a bundle on disk has; None for one that is only in memory.

    Bundles that were built otherwise from the same weights have the same name.
    """
    if bundle.manifest is None or not bundle.manifest.tensors:
        return None
    return digest("weights", *sorted({info.sha256 for info in bundle.manifest.tensors.values()}))


def identities(bundle: Bundle) -> dict[int, str]:
    """Name the tensors of initializers by their content; see `Weight.identity`.

    In a bundle on disk, that is the hash in the manifest, and nothing is read: who packs something
    under such a name compares (`MappedTensor.checked`). In a bundle that is only in memory, tensors
    get names that no other bundle has; those that are the same data in several methods have one
    name.

    Returns:
        The names by ``id`` of the tensors, which clones of the models share. They hold as long as
        the bundle.
    """
    here = uuid.uuid4().hex
    found: dict[int, str] = {}
    for method, model in bundle.methods.items():
        for graph in nested_graphs(model.graph):
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is None or tensor.dtype in _UNNAMED or id(tensor) in found:
                    continue
                content = _content(bundle, method, value, tensor, f"{here}/{len(found)}")
                found[id(tensor)] = _identity(content, tensor)
    return found


_HASHED = 1 << 22
"""Bytes up to which a tensor is read to name it in a printed plan."""


def printed(bundle: Bundle) -> dict[int, str]:
    """Name the tensors of initializers for a printed plan: equal plans have equal names.

    Large tensors that are only in memory are named by their initializers, and not read.
    """
    found: dict[int, str] = {}
    for model in bundle.methods.values():
        for graph in nested_graphs(model.graph):
            for value in graph.initializers.values():
                tensor = value.const_value
                if tensor is None or tensor.dtype in _UNNAMED:
                    continue
                if isinstance(tensor, MappedTensor) and tensor.sha256 is not None:
                    found[id(tensor)] = _identity(tensor.sha256, tensor)
                elif tensor.nbytes <= _HASHED:
                    found[id(tensor)] = identity_of(tensor)
                else:
                    found[id(tensor)] = _identity(value.name or "", tensor)
    return found


def identity_of(tensor: ir.TensorProtocol) -> str:
    """Name a tensor by its bytes, which are read; see `Weight.identity`."""
    return _identity(hashlib.sha256(tensor.tobytes()).hexdigest(), tensor)


def _identity(content: str, tensor: ir.TensorProtocol) -> str:
    return identity_from(content, tensor.dtype, tensor.shape.numpy())


def identity_from(sha256: str, dtype: ir.DataType, shape: Sequence[int]) -> str:
    """Name a tensor by the hash of its bytes; see `Weight.identity`."""
    return digest("tensor", sha256, dtype, list(shape))


_UNNAMED = (ir.DataType.STRING, ir.DataType.UNDEFINED)


def _content(
    bundle: Bundle, method: str, value: ir.Value, tensor: ir.TensorProtocol, alone: str
) -> str:
    """Name the bytes of an initializer; `alone` is a name that is unique to it."""
    if isinstance(tensor, MappedTensor) and tensor.sha256 is not None:
        return tensor.sha256  # the tensor's own, which is compared: a model may have been changed
    if bundle.manifest is None and len(bundle.methods) == 1:
        return alone  # without looking for equal ones: that reads them
    try:
        key = bundle.key(method, value)
    except KeyError:  # a small one, which stays in the model's file
        return hashlib.sha256(tensor.tobytes()).hexdigest()
    if bundle.manifest is not None:
        return alone  # the model was changed after it was loaded: the key is of another tensor
    return f"{alone.partition('/')[0]}/{key}"
