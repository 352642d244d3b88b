"""Rewriting a model by a choice of candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from narrowpass_auto.choice.problem import KEEP, Choice
from narrowpass_auto.measure.trials import rewrite
from narrowpass_ir.sizes import count_bytes

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass import Candidate, Context
    from narrowpass_auto.graph.units import Region, Unit


_KEPT_BYTES = 512 << 20


class Assignment:
    """Applies choices to a model.

    Args:
        model: as it is before; not changed.
        units: of the model.
        regions: of the units.
        followers: for each node that is no unit the units nearest to it; see `units.followers`.
        candidates: by name.
        ctx: of the pass; its samples are those that candidates see.
    """

    def __init__(
        self,
        model: ir.Model,
        units: Sequence[Unit],
        regions: Sequence[Region],
        followers: Mapping[str, frozenset[int]],
        candidates: Mapping[str, Candidate],
        ctx: Context,
    ) -> None:
        self._model, self._units, self._regions = model, units, regions
        self._followers, self._candidates, self._ctx = followers, candidates, ctx
        self._kept: dict[Choice, ir.Model] = {}

    def apply(self, choice: Choice) -> ir.Model:
        """Return the model rewritten: the model itself where nothing is.

        A node that is no unit is rewritten with the units nearest to it, where these all have one
        candidate. Choices are rewritten once: their models are kept, the last ones that together
        have no more than `_KEPT_BYTES` of constants.

        Raises:
            PassError: a candidate cannot rewrite it.
        """
        model = self._kept.pop(choice, None) or self._rewritten(choice)
        self._kept[choice] = model
        sizes = {known: count_bytes(kept) for known, kept in self._kept.items()}
        for known in list(self._kept)[:-1]:
            if sum(sizes.values()) > _KEPT_BYTES:
                del self._kept[known], sizes[known]
        return model

    def _rewritten(self, choice: Choice) -> ir.Model:
        of_unit = {
            unit: name
            for region, name in zip(self._regions, choice, strict=True)
            for unit in region.units
        }
        model = self._model
        for candidate in sorted(self._candidates.values(), key=lambda c: (c.rank, c.name)):
            nodes = [unit.name for unit in self._units if of_unit[unit.index] == candidate.name]
            if not nodes:
                continue
            for name, nearest in self._followers.items():
                if nearest and {of_unit[index] for index in nearest} == {candidate.name}:
                    nodes.append(name)
            model, _ = rewrite(candidate, model, nodes, self._ctx)
        return model

    @property
    def keep(self) -> Choice:
        """The choice that changes nothing."""
        return (KEEP,) * len(self._regions)
