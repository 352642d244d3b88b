"""The samples that choices follow from, and those that prove them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from narrowpass.calibration.samples import Samples
from narrowpass.errors import PassError, UsageError
from narrowpass_analysis.inputs import random_inputs

if TYPE_CHECKING:
    import onnx_ir as ir

_GENERATED = 8
_SEEN = 16
"""Ranges hardly grow with more samples, and each rewrite of a whole model runs it on all."""


class Split:
    """Samples in two halves: every second one is held out.

    Args:
        samples: all of them.

    Attributes:
        chosen_by: the first, third, fifth and so on.
        seen: the first `_SEEN` of these, which candidates calibrate and observe by.
        held_out: the second, fourth and so on; the only one where there is one alone.
        alone: whether there is one sample alone, which is in both.
    """

    def __init__(self, samples: Samples) -> None:
        self.alone = sum(1 for _ in islice(samples, 2)) < 2
        self.chosen_by = Samples(samples.source, lambda: islice(samples, 0, None, 2))
        self.seen = Samples(samples.source, lambda: islice(samples, 0, 2 * _SEEN, 2))
        start = 0 if self.alone else 1
        self.held_out = Samples(
            f"{samples.source}, held out", lambda: islice(samples, start, None, 2)
        )


def generated(graph: ir.Graph, sizes: Mapping[str, int]) -> tuple[Samples, list[str]]:
    """Return random samples of the shapes of a signature, the same in each round.

    Args:
        graph: its inputs.
        sizes: of symbolic dimensions, by name.

    Returns:
        The samples, and a note for each dimension that was taken as 1.

    Raises:
        PassError: an input that no random array fits.
    """
    shapes = {}
    for value in graph.inputs:
        dims: Sequence[Any] = tuple(value.shape or ())
        known = [dim if isinstance(dim, int) else sizes.get(str(dim.value)) for dim in dims]
        if dims and any(not isinstance(dim, int) for dim in dims):
            shapes[value.name or ""] = tuple(1 if dim is None else dim for dim in known)
    try:
        rounds = [random_inputs(graph, shapes, seed) for seed in range(_GENERATED)]
    except UsageError as error:
        raise PassError(f"no samples, and none can be generated: {error}") from error
    feeds = [one for one, _ in rounds]
    named = {
        str(dim.value) for v in graph.inputs for dim in (v.shape or ()) if not isinstance(dim, int)
    }
    notes = [
        f"dimension {name!r} is taken as 1; sizes=[{name}=N] sets it"
        for name in sorted(named - set(sizes))
    ]
    return Samples("random samples", lambda: feeds), notes


def parse_sizes(texts: Iterable[str]) -> dict[str, int]:
    """Read ``NAME=SIZE`` of symbolic dimensions.

    Raises:
        UsageError: text that is none.
    """
    found = {}
    for text in texts:
        name, equals, size = text.partition("=")
        if not equals or not name or not size.isdecimal() or int(size) < 1:
            raise UsageError(f"sizes: {text!r} is not of the form NAME=SIZE, such as sequence=128")
        found[name] = int(size)
    return found
