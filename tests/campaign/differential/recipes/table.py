"""The table that a module of recipes fills."""

from __future__ import annotations

from collections.abc import Callable

from differential.draft import Draft

Recipe = Callable[[Draft], None]


class Table:
    """Recipes by domain and name of the operator."""

    def __init__(self) -> None:
        self.entries: dict[tuple[str, str], Recipe] = {}

    def add(self, names: str, domain: str = "") -> Callable[[Recipe], Recipe]:
        """Return a decorator that enters a function for operators, whose names are in one text."""

        def enter(recipe: Recipe) -> Recipe:
            for name in names.split():
                self.entries[domain, name] = recipe
            return recipe

        return enter
