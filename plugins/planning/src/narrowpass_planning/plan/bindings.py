"""Bindings of a partition to the shapes that it ran with lately, to be taken up again.

Texts and sounds have lengths that come again. Operators of ours have no state, so that a binding
stays valid while the partition is bound to other shapes; those of XNNPACK hold one size each, and
are sized again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from narrowpass_planning.plan.bound import BoundPartition
from narrowpass_planning.plan.shapes import Evaluated, ShapeNode, Shapes, same
from narrowpass_planning.plan.step import Array, Shape

MOST, FEWEST = 64, 4
_STEPS = 6000
"""Bindings of a partition that are kept, and their steps: each takes 3 kB, 17 MB together."""


def most_of(steps: int) -> int:
    """Return the number of bindings that a partition of so many steps keeps."""
    return max(FEWEST, min(MOST, _STEPS // max(1, steps)))


@dataclass(frozen=True)
class Binding:
    """A binding, and what propagation found for its shapes.

    Attributes:
        bound: the partition, bound to the shapes.
        values: that follow from shapes outside of the partition, and that its sizes depend on.
        shapes: of its values, by name.
        evaluated: what its shape arithmetic computed.
    """

    bound: BoundPartition
    values: tuple[Array | None, ...]
    shapes: Mapping[str, Shape]
    evaluated: Sequence[tuple[ShapeNode, Evaluated]]

    def restore(self, shapes: Shapes) -> None:
        """Put shapes and shape arithmetic back to what they were."""
        shapes.shapes.update(self.shapes)
        for node, evaluated in self.evaluated:
            node.restore(evaluated, shapes)


class Bindings:
    """The bindings of a partition by their signature, the one used last at the end.

    Args:
        most: the number that is kept.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._kept: OrderedDict[Hashable, Binding | None] = OrderedDict()

    def find(self, signature: Hashable, values: Iterable[Array | None]) -> Binding | None:
        """Return the binding for a signature and values, if it is kept."""
        found = self._kept.get(signature)
        if found is None or not all(map(same, values, found.values)):
            return None
        self._kept.move_to_end(signature)
        return found

    def seen(self, signature: Hashable) -> bool:
        """Return whether the partition was bound to a signature lately."""
        return signature in self._kept

    def add(self, signature: Hashable, binding: Binding | None) -> None:
        """Keep a binding, or remember a signature alone, and forget the one used longest ago."""
        self._kept[signature] = binding
        self._kept.move_to_end(signature)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def changed(self, bound: BoundPartition) -> None:
        """Forget a binding that has other shapes by now; its signature is still remembered."""
        for signature, binding in self._kept.items():
            if binding is not None and binding.bound is bound:
                self._kept[signature] = None

    def clear(self) -> None:
        """Forget all."""
        self._kept.clear()
