"""Iterations of a loop body: in one native call where it is one partition, else one by one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from narrowpass_planning.host.bodies import Body
from narrowpass_planning.plan.executor import Pool
from narrowpass_planning.plan.loop import LoopSignature, ScanInput

Array = np.ndarray[Any, Any]

_INT64_MAX = (1 << 63) - 1


class Iterations:
    """Iterations of a Loop or a Scan.

    Args:
        body: what an iteration runs.
        states: the number of loop-carried values.
        scans: the number of scan inputs.
        numbered: whether the body has an iteration number and a condition, as that of Loop.

    Attributes:
        states: the number of loop-carried values.
        first: which output of the body is the first that is stacked.
    """

    def __init__(self, body: Body, states: int, scans: int, *, numbered: bool) -> None:
        self._body = body
        self._number, self._true = np.zeros((), np.int64), np.ones((), np.bool_)
        self.states = max(0, states)
        formals, outputs = list(body.formals), list(body.outputs)
        number, going = formals[:2] if numbered else ("", "")
        condition = outputs.pop(0) if numbered else ""
        formals = formals[2:] if numbered else formals
        self.first = self.states + numbered
        self._roles = LoopSignature(
            number,
            going,
            tuple(formals[: self.states]),
            tuple(formals[self.states :]),
            condition,
            tuple(outputs[: self.states]),
            tuple(outputs[self.states :]),
        )

    def run(
        self,
        initial: Sequence[Any],
        scans: Sequence[ScanInput],
        limit: int | None,
        values: Mapping[str, Any],
        pool: Pool,
    ) -> tuple[Sequence[Any], Sequence[Array], Sequence[bool]]:
        """Run at least one iteration.

        Args:
            initial: the first state.
            scans: scan inputs, each of `limit` slices.
            limit: the most iterations; None for as many as the condition says.
            values: of the graph around the body, by name.
            pool: the threads.

        Returns:
            The last state, the stacked outputs, and for each state whether it was allocated here.
        """
        roles = self._roles
        feeds = {name: values[name] for name in self._body.reads}
        feeds.update(zip(roles.states, initial, strict=True))
        feeds.update((name, scan.array[0]) for name, scan in zip(roles.slices, scans, strict=True))
        if roles.number:
            feeds[roles.number], feeds[roles.going] = self._number, self._true
        if limit != 1:
            repeated = self._body.repeated(feeds, roles, pool)
            if repeated is not None:
                known = limit is not None
                most = _INT64_MAX if limit is None else limit
                states, stacks = repeated.run(feeds, scans, most, pool, known=known)
                return states, stacks, [True] * len(states)
        return self._one_by_one(feeds, scans, limit, pool)

    def _one_by_one(
        self,
        feeds: dict[str, Any],
        scans: Sequence[ScanInput],
        limit: int | None,
        pool: Pool,
    ) -> tuple[Sequence[Any], Sequence[Array], Sequence[bool]]:
        roles, body = self._roles, self._body
        rows: list[list[Any]] = [[] for _ in roles.scanned]
        count = 0
        going = True
        results: list[Any] = []
        while going and (limit is None or count < limit):
            if roles.number:
                feeds[roles.number] = np.array(count, np.int64)
            for name, scan in zip(roles.slices, scans, strict=True):
                feeds[name] = scan.array[-1 - count if scan.backwards else count]
            results = body.run(feeds, pool)
            if roles.condition:
                going = bool(results.pop(0).item())
            feeds.update(zip(roles.states, results, strict=False))
            for row, value in zip(rows, results[self.states :], strict=True):
                row.append(value)
            count += 1
        fresh = body.fresh[self.first - self.states :]
        return results[: self.states], [np.stack(row) for row in rows], fresh[: self.states]
