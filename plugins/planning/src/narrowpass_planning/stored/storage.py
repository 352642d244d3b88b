"""The interface that a backend implements for its compiled methods to be stored.

The errors say why a compiled method is not stored, or not restored. Users never see them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from narrowpass_planning.plan.step import Step


class NotStorableError(Exception):
    """A compiled method has something that the format does not: it is planned in each process."""


class StaleError(Exception):
    """A stored method needs what is not there, such as weights that are not packed yet."""


class StepStorage(Protocol):
    """Steps as records: what a step is created from, before weights are packed.

    Attributes:
        packages: whose code lowers operations: stored methods are those of this code.
    """

    packages: Sequence[str]

    def classes(self) -> Mapping[str, type[Any]]:
        """Return the dataclasses of records, and of what they hold, by name."""

    def planned_for(self) -> str:
        """Return all that lowering depends on beside the model: options, and the processor."""

    def record(self, step: Step) -> Any:
        """Return the record of a step.

        Raises:
            NotStorableError: it cannot be created again from a record.
        """

    def step(self, record: Any, session: Any) -> Step:
        """Create the step of a record.

        Args:
            record: as `record` returned it.
            session: of the weights cache, open.

        Raises:
            StaleError: weights that are not packed yet.
        """
