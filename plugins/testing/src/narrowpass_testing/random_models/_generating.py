"""Random models by seeds."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

import numpy as np

from narrowpass_testing.random_models._builder import Key, Recipes, Style, drawn_case
from narrowpass_testing.random_models._cases import Case
from narrowpass_testing.random_models.recipes import RECIPES


def random_case(
    seed: int,
    *,
    recipes: Recipes = RECIPES,
    types: Sequence[str] = (),
    steps: Sequence[int] = (),
    zeros: bool = False,
) -> Case | None:
    """Return a random model with feeds; None where the draw came to nothing.

    The seed modulo the number of recipes selects the operator or the block that the model must
    have, so that all have equally many models; others stand around it. An oracle runs each node
    when it is drawn, so that a model is valid, and its values are ordinary numbers. Equal seeds
    are equal models with the same recipes and the same versions of this package and the oracles.

    Args:
        seed: fixes the draw.
        recipes: what is drawn from, such as ``RECIPES.only(["Conv", "Relu", "written"])``.
        types: element types that are preferred where a schema leaves the choice, such as
            ``float``; by default all have their share.
        steps: how many nodes or blocks stand around the first one, as often as they are here; by
            default up to 5, around a block up to 12.
        zeros: whether some models have sizes of 0. Not every oracle is made for them: run such
            models in a process of their own.
    """
    keys = recipes.keys()
    style = Style(recipes, tuple(types), zeros)
    choice, numbers = random.Random(seed), np.random.default_rng(seed)
    key = keys[seed % len(keys)]
    with np.errstate(all="ignore"):  # elements that a narrower type has not
        return drawn_case(style, key, choice, numbers, steps, f"seed_{seed}")


def draw_case(
    key: Key,
    choice: random.Random,
    numbers: np.random.Generator,
    *,
    recipes: Recipes = RECIPES,
    types: Sequence[str] = (),
    steps: Sequence[int] = (),
) -> Case | None:
    """Return a random model from generators of random numbers, such as Hypothesis's.

    Args:
        key: of `recipes`: what the model must have.
        choice: of all choices.
        numbers: of all elements.
        recipes: what is drawn from.
        types: element types that are preferred.
        steps: how many nodes stand around the first one.
    """
    style = Style(recipes, tuple(types), zeros=False)
    with np.errstate(all="ignore"):
        return drawn_case(style, key, choice, numbers, steps)


def random_models(
    seed: int = 0,
    count: int = 100,
    *,
    recipes: Recipes = RECIPES,
    types: Sequence[str] = (),
    steps: Sequence[int] = (),
    zeros: bool = False,
) -> Iterator[Case]:
    """Yield random models with feeds; see `random_case`.

    Args:
        seed: the first one.
        count: how many seeds: a few of them may yield nothing.
        recipes: what is drawn from.
        types: element types that are preferred.
        steps: how many nodes stand around the first one.
        zeros: whether some models have sizes of 0.
    """
    for each in range(seed, seed + count):
        found = random_case(each, recipes=recipes, types=types, steps=steps, zeros=zeros)
        if found is not None:
            yield found
