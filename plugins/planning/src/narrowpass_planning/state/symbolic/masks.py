"""Masks of attention as conditions: causal, with a sliding window, and with a feed of 0 and 1."""

from __future__ import annotations

from dataclasses import dataclass

from narrowpass_planning.state.symbolic.affine import ROWS, Affine, index
from narrowpass_planning.state.symbolic.arithmetic import as_condition, constant_of
from narrowpass_planning.state.symbolic.elements import (
    CONDITIONS,
    AtLeast,
    Element,
    Every,
    FedIsOne,
    map_leaves,
    negate,
    simplified,
)
from narrowpass_planning.state.symbolic.tensor import Tensor

LOW = -1e4
"""What is added to a score that is masked is at most this: its exponential is 0 in float32."""


@dataclass(frozen=True)
class Mask:
    """Which keys a query sees.

    Attributes:
        causal: whether those up to its own position alone.
        window_size: whether of these the last so many alone; 0 for all.
        fed: the input that has 1 for the keys that are seen; empty for none.
        low: added to masked scores, or in their place.
    """

    causal: bool
    window_size: int
    fed: str
    low: float


def added_mask(tensor: Tensor) -> Mask | None:
    """Return the mask that is added to scores; None where it is another one."""
    lows: set[float] = set()

    def leaf(element: Element) -> Element | None:
        number = constant_of(element)
        if number is None or LOW < number < 0 or number > 0:
            return None
        if number != 0:
            lows.add(number)
        return number == 0

    kept = None if tensor.element is None else map_leaves(tensor.element, leaf)
    # A row that sees no key weighs those by their scores that are masked by the least.
    return None if kept is None else _mask_of(kept, tensor, max(lows, default=LOW))


def chosen_mask(tensor: Tensor, low: float, *, filled: bool) -> Mask | None:
    """Return the mask that keeps scores, or those where it is false if they are `filled`."""
    kept = None if tensor.element is None else as_condition(tensor.element)
    if kept is None or low > LOW:
        return None
    return _mask_of(negate(kept) if filled else kept, tensor, low)


def _mask_of(kept: Element, tensor: Tensor, low: float) -> Mask | None:
    if not isinstance(kept, CONDITIONS) or tensor.rank < 2:
        return None
    condition = simplified(kept, tensor.dims)
    row, column = Affine.of(index(2)), Affine.of(index(1))
    single = tensor.dims[-2] == Affine.number(1)
    if single:
        row = Affine()
    before = Affine.of(ROWS) + row - column
    causal, window_size, fed = False, 0, ""
    for part in condition.parts if isinstance(condition, Every) else (condition,):
        if part is True:
            continue
        if isinstance(part, AtLeast) and part.value == before:
            causal = True
        elif isinstance(part, AtLeast) and (part.value + before).is_number and not window_size:
            window_size = (part.value + before).constant + 1
            if window_size < 1:
                return None
        elif isinstance(part, FedIsOne) and not fed and part.at == (_batch(tensor), column):
            fed = part.name
        else:
            return None
    if single and (causal or window_size) and tensor.dims[-1] - Affine.of(ROWS) != Affine.number(1):
        return None  # rows of a prompt would see what the first one sees, and no more
    return Mask(causal, window_size, fed, low)


def _batch(tensor: Tensor) -> Affine:
    """Return the index of the batch in a mask of [batch, 1, rows, columns]."""
    single = tensor.rank < 4 or tensor.dims[0] == Affine.number(1)
    return Affine() if single else Affine.of(index(4))
