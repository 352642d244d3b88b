"""A batch that fails is divided until the rows that fail stand alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from narrowpass.errors import PluginError, UsageError
from narrowpass.framework.boundary import sentence

T = TypeVar("T")


def isolate(
    count: int, compute: Callable[[int, int], T]
) -> tuple[list[tuple[range, T]], dict[int, str]]:
    """Compute a batch; where that raises, compute its halves.

    Args:
        count: of the rows.
        compute: computes rows from `start` to `stop`.

    Returns:
        What was computed, with the numbers of its rows; and the message for each row that cannot
        be computed even alone. Each row is in one of the two.

    Raises:
        UsageError: that of `compute`: what the caller asked for is wrong, whatever the rows are.
    """
    results: list[tuple[range, T]] = []
    errors: dict[int, str] = {}
    waiting = [range(count)] if count else []
    while waiting:
        rows = waiting.pop()
        try:
            results.append((rows, compute(rows.start, rows.stop)))
        except (UsageError, PluginError):
            raise
        except Exception as error:  # noqa: BLE001  # any error may be due to a row
            if len(rows) == 1:
                errors[rows.start] = sentence(error)
                continue
            middle = (rows.start + rows.stop) // 2
            waiting += [range(middle, rows.stop), range(rows.start, middle)]
    return results, errors
