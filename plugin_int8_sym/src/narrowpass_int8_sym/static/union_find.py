"""Union-find, for values that must have the same scale and zero point."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class UnionFind(Generic[T]):
    """Disjoint sets; an item that was never joined is a set of its own."""

    def __init__(self) -> None:
        self._parents: dict[T, T] = {}

    def find(self, item: T) -> T:
        """Return the representative of the set of `item`."""
        root = item
        while (parent := self._parents.get(root, root)) != root:
            root = parent
        while (parent := self._parents.get(item, item)) != root:
            self._parents[item] = root
            item = parent
        return root

    def union(self, items: Iterable[T]) -> None:
        """Merge the sets of items."""
        first: T | None = None
        for item in items:
            if first is None:
                first = self.find(item)
                continue
            other = self.find(item)
            if other != first:
                self._parents[other] = first
