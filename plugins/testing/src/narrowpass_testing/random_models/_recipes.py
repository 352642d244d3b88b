"""Tables of recipes: what operands an operator takes, and which nodes belong together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from narrowpass_testing.random_models._chain import Chain
    from narrowpass_testing.random_models._draft import Draft

Recipe = Callable[["Draft"], None]
"""Adds operands and attributes to the draft of one node, in the order of its schema."""

Key = tuple[str, str]
"""The domain and the name of an operator, or the group and the name of a block."""


@dataclass(frozen=True)
class Block:
    """Several nodes that belong together, such as a layer as exporters write it.

    Attributes:
        draw: adds the nodes to a chain.
        opset: the oldest operator set of ONNX in which it can be written.
        alone: whether no other node stands around it: what it quantizes has the slack of one
            step, which another node could spread.
    """

    draw: Callable[[Chain], None]
    opset: int = 8
    alone: bool = False


class Recipes:
    """Recipes of operators and blocks, by which random models are drawn.

    `RECIPES` has those of ONNX. A backend's tests add their own to a copy, or to a table that they
    join with it::

        mine = Recipes()

        @mine.block("layers", "ConvRelu")
        def conv_relu(c: Chain) -> None:
            x = c.take(4, 4)
            y = c.add("Conv", [x, c.weight((8, c.shape(x)[1], 3, 3))], pads=[1, 1, 1, 1])
            c.add("Relu", [y])

        cases = random_models(0, 200, recipes=RECIPES | mine)

    Attributes:
        by_operator: recipes by domain and name of the operator.
        blocks: by group and name; a group is no domain of operators.
    """

    def __init__(self) -> None:
        self.by_operator: dict[Key, Recipe] = {}
        self.blocks: dict[Key, Block] = {}

    def operators(self, names: str, domain: str = "") -> Callable[[Recipe], Recipe]:
        """Return a decorator that enters a recipe for operators, whose names are in one text."""

        def enter(recipe: Recipe) -> Recipe:
            for name in names.split():
                self.by_operator[domain, name] = recipe
            return recipe

        return enter

    def block(
        self, group: str, name: str, *, opset: int = 8, alone: bool = False
    ) -> Callable[[Callable[[Chain], None]], Callable[[Chain], None]]:
        """Return a decorator that enters a function for a block; see `Block`."""

        def enter(draw: Callable[[Chain], None]) -> Callable[[Chain], None]:
            self.blocks[group, name] = Block(draw, opset, alone)
            return draw

        return enter

    def keys(self) -> tuple[Key, ...]:
        """Return the keys that seeds select: operators in order of their names, then blocks."""
        return (*sorted(self.by_operator), *sorted(self.blocks))

    def is_alone(self, key: Key) -> bool:
        """Report whether a key is that of a block around which nothing stands."""
        return key in self.blocks and self.blocks[key].alone

    def only(self, names: Iterable[str]) -> Recipes:
        """Return the recipes of some operators, and the blocks of some groups.

        Raises:
            ValueError: a name that no operator and no group has.
        """
        wanted = set(names)
        found = Recipes()
        found.by_operator = {k: r for k, r in self.by_operator.items() if k[1] in wanted}
        found.blocks = {k: b for k, b in self.blocks.items() if k[0] in wanted}
        known = {name for _, name in found.by_operator} | {group for group, _ in found.blocks}
        if wanted - known:
            raise ValueError(f"no recipes for {', '.join(sorted(wanted - known))}")
        return found

    def __or__(self, other: Any) -> Recipes:
        """Return the recipes of both; those of the second one where both have one."""
        if not isinstance(other, Recipes):
            return NotImplemented
        found = Recipes()
        found.by_operator = self.by_operator | other.by_operator
        found.blocks = self.blocks | other.blocks
        return found
