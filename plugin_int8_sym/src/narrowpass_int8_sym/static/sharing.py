"""Values that must have the same scale and zero point: a union-find."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Sharing(Generic[T]):
    """Sets of things that are the same in some respect; whatever was never joined is alone."""

    def __init__(self) -> None:
        self._parents: dict[T, T] = {}

    def find(self, item: T) -> T:
        """Return the thing that stands for all that `item` is joined with."""
        root = item
        while (parent := self._parents.get(root, root)) != root:
            root = parent
        while (parent := self._parents.get(item, item)) != root:
            self._parents[item] = root
            item = parent
        return root

    def join(self, items: Iterable[T]) -> None:
        """Join things, with all that they were joined with before."""
        first: T | None = None
        for item in items:
            if first is None:
                first = self.find(item)
                continue
            other = self.find(item)
            if other != first:
                self._parents[other] = first
