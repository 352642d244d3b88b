"""What ``auto`` shows: runs by time, bytes and error; estimates for other limits; offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from narrowpass_auto.choice.offers import Offers
from narrowpass_auto.choice.problem import KEEP, Choice, Problem
from narrowpass_auto.choice.search import Outcome, Point
from narrowpass_auto.limits import Limit

Exhibit = Mapping[str, Any]

_WIDE = "fp32"
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
"""Times the limit, for the table of other limits."""


def exhibits(
    offers: Offers,
    outcome: Outcome,
    limit: Limit,
    before: int,
    solve: Callable[[Problem, float], Choice],
) -> list[Exhibit]:
    """Return the exhibits of a search.

    Args:
        offers: of the units.
        outcome: of the search.
        limit: on the error.
        before: bytes of constants of the model as it was.
        solve: returns the best choice of a problem within a budget of noise.
    """
    shown: list[Exhibit] = []
    points = outcome.points
    if any(point.found.ratio is not None for point in points):
        shown.append(
            _plot(
                "Time and error of the runs",
                "time of a run, 1 as it was",
                points,
                outcome,
                limit,
                lambda point: 1.0 if point.found.ratio is None else point.found.ratio,
            )
        )
    if before and points:
        shown.append(
            _plot(
                "Bytes and error of the runs",
                "bytes of weights, 1 as they were",
                points,
                outcome,
                limit,
                lambda point: point.found.bytes / before,
            )
        )
    shown.append(_runs(points, outcome, limit, before))
    shown += _other_limits(outcome, limit, solve)
    shown.append(_offers(offers, outcome))
    return shown


def _plot(
    title: str,
    label: str,
    points: Sequence[Point],
    outcome: Outcome,
    limit: Limit,
    across: Callable[[Point], float],
) -> Exhibit:
    placed = [(across(point), point.found.error, point) for point in points]
    front = [
        point
        for x, y, point in placed
        if not any(a <= x and b <= y and (a, b) != (x, y) for a, b, _ in placed)
    ]
    chosen = outcome.chosen
    return {
        "title": title,
        "plot": {
            "x": label,
            "y": f"error ({limit.metric}; the limit is {limit.bound:.3g})",
            "log": ["y"],
            "limit": limit.bound,
            "points": [
                {
                    "x": x,
                    "y": y,
                    "label": point.how,
                    "kind": "chosen" if point is chosen else "front" if point in front else "",
                }
                for x, y, point in placed
            ],
        },
    }


def _runs(points: Sequence[Point], outcome: Outcome, limit: Limit, before: int) -> Exhibit:
    rows = []
    for number, point in enumerate(points, 1):
        ratio = point.found.ratio
        rows.append(
            [
                number,
                point.how + (" (chosen)" if point is outcome.chosen else ""),
                limit.shown(point.found.error),
                "within" if point.found.error <= limit.bound else "beyond",
                "" if ratio is None else f"{ratio:.3f}",
                f"{point.found.bytes / before:.3f}" if before else "",
            ]
        )
    columns = ["run", "choice", "error", "limit", "time", "bytes"]
    return {
        "title": "Runs of whole models; time and bytes as shares of those of the model as it was",
        "table": {"columns": columns, "rows": rows, "numbers": ["run", "time", "bytes"]},
    }


def _other_limits(
    outcome: Outcome, limit: Limit, solve: Callable[[Problem, float], Choice]
) -> list[Exhibit]:
    """Return estimates for other limits, from the run that is nearest to the limit."""
    near = [
        point
        for point in outcome.points
        if 0.0 < point.found.error < float("inf") and 0.0 < point.found.noise < float("inf")
    ]
    if outcome.chosen is not None and outcome.chosen in near:
        near = [outcome.chosen]
    if not near:
        return []
    problem = outcome.problem
    keep = problem.total(problem.keep())
    point = min(near, key=lambda p: abs(p.found.error - limit.bound))
    scale = point.found.noise / point.found.error**limit.power
    rows = []
    for factor in _FACTORS:
        error = factor * limit.bound
        total = problem.total(solve(problem, scale * error**limit.power))
        rows.append(
            [
                f"{factor:g} times the limit: {limit.shown(error)}",
                f"{total.seconds / keep.seconds:.3f}" if keep.seconds else "",
                f"{total.bytes / keep.bytes:.3f}" if keep.bytes else "",
            ]
        )
    columns = ["error", "time of the nodes", "bytes of the nodes"]
    return [
        {
            "title": "Estimates for other limits, as shares of what the nodes had",
            "table": {"columns": columns, "rows": rows, "numbers": columns[1:]},
        }
    ]


def _offers(offers: Offers, outcome: Outcome) -> Exhibit:
    names = offers.names()
    chosen: Choice = outcome.problem.keep() if outcome.chosen is None else outcome.chosen.choice
    of_unit = {
        unit: name
        for region, name in zip(offers.regions, chosen, strict=True)
        for unit in region.units
    }
    rows = []
    for number, unit in enumerate(offers.units):
        by_name = offers.by_unit[number]
        cells = [unit.name, unit.node.op_type, of_unit[number] or _WIDE, _cell(by_name[KEEP])]
        cells += [_cell(by_name[name]) if name in by_name else "" for name in names]
        rows.append(cells)
    return {
        "title": "What candidates offer each node: µs, KB, noise over power",
        "table": {"columns": ["node", "operator", "chosen", _WIDE, *names], "rows": rows},
    }


def _cell(offer: Any) -> str:
    time = "" if offer.seconds is None else f"{1e6 * offer.seconds:.3g} µs, "
    noise = f", {offer.loss:.1e}" if offer.loss else ""
    return f"{time}{offer.bytes / 1e3:.3g} KB{noise}"
