"""The named data of a bundle, found by content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass.errors import InputError
from narrowpass_ir.io import MappedTensor
from narrowpass_planning.stored.storage import NotStorableError, StaleError
from narrowpass_planning.weights.names import identity_from

if TYPE_CHECKING:
    from narrowpass.bundle import NamedData

Array = np.ndarray[Any, Any]


class NamedTensors:
    """The tensors of a bundle on disk, by key, by content and by identity.

    Args:
        data: the bundle's data map, with the hashes of its manifest.
    """

    def __init__(self, data: Mapping[str, NamedData]) -> None:
        self._data = data
        self._by_content = {item.sha256: key for key, item in data.items() if item.sha256}
        self._by_identity = {
            identity_from(item.sha256, item.dtype, item.shape): key
            for key, item in data.items()
            if item.sha256
        }

    def key_of(self, array: Array) -> str | None:
        """Return the key of the tensor with the bytes of an array, which are hashed."""
        dense = np.ascontiguousarray(array).reshape(-1)
        return self._by_content.get(hashlib.sha256(dense.view(np.uint8).tobytes()).hexdigest())

    def key_named(self, identity: str) -> str | None:
        """Return the key of the tensor that has an identity; see `Weight.identity`."""
        return self._by_identity.get(identity)

    def tensor(self, key: str) -> MappedTensor:
        """Return the tensor of a key.

        Raises:
            StaleError: the bundle has none.
        """
        tensor = self._data[key].tensor if key in self._data else None
        if not isinstance(tensor, MappedTensor):
            raise StaleError(f"the bundle has no tensor {key!r}")
        return tensor

    def check(self, largest: int | None = None) -> None:
        """Compare tensors with their hashes: what is stored must not outlive a damaged file.

        Args:
            largest: bytes of the tensors that are read; None for all.

        Raises:
            NotStorableError: one is damaged.
        """
        for item in self._data.values():
            if isinstance(item.tensor, MappedTensor) and item.nbytes <= (largest or item.nbytes):
                try:
                    item.tensor.checked()
                except InputError as error:
                    raise NotStorableError(str(error)) from error
