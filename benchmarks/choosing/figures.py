"""The table and the plot of what was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

from forms import AUTO, FIXED, WIDE

_PEERS = ("onnxruntime", "OpenVINO")
"""First words of the names of peers: runtimes, whose best form within the limit counts."""

_COLUMNS = (
    *("model", "nodes", "limit", "fp32 ms", "time", "bytes", "error"),
    *("best fixed", "its time", *_PEERS, "runs", "build s"),
)
_SLOWER = 1.03
"""Ratios of times up to this are the noise of timing."""
_PASSES = 30


def ratio(row: dict[str, Any], name: str) -> float | None:
    """Return the time of a form over that as fp32; None where it has none.

    It is 1 where the form is the model as it was.
    """
    forms = row.get("forms", {})
    if forms.get(name, {}).get("same"):
        return 1.0
    if "seconds" not in forms.get(name, {}) or "seconds" not in forms.get(WIDE, {}):
        return None
    return float(forms[name]["seconds"][1] / forms[WIDE]["seconds"][1])


def best_fixed(row: dict[str, Any], among: Sequence[str] = tuple(FIXED)) -> tuple[str, float]:
    """Return the fastest within the limit of the forms with one type for all nodes, or fp32."""
    found = [(share, name) for name in among if (share := ratio(row, name)) is not None]
    share, name = min([*found, (1.0, WIDE)])
    return name, share


def best_of_peer(row: dict[str, Any], peer: str) -> tuple[str, float] | None:
    """Return the fastest form of a peer within the limit, on its own runtime, float32 among them.

    None where it runs none.
    """
    names = [name for name in row.get("forms", {}) if name.partition(" ")[0] == peer]
    found = [(share, name) for name in names if (share := ratio(row, name)) is not None]
    return min(found)[::-1] if found else None  # type: ignore[return-value]


def lines(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a Markdown table; times and bytes are shares of those as fp32."""
    yield "| " + " | ".join(_COLUMNS) + " |"
    yield "|---" * len(_COLUMNS) + "|"
    for row in rows:
        yield f"| {row['model']} | " + " | ".join(_cells(row)) + " |"


def _cells(row: dict[str, Any]) -> list[str]:
    if "failure" in row:
        return [row["failure"], *[""] * (len(_COLUMNS) - 2)]
    forms = row["forms"]
    wide, auto = forms[WIDE], forms[AUTO]
    first = [str(wide["nodes"]), row["limit"], f"{1e3 * wide['seconds'][1]:.3g}"]
    fixed, share = best_fixed(row)
    last = [fixed, f"{share:.2f}"]
    for peer in _PEERS:
        found = best_of_peer(row, peer)
        last.append("" if found is None else f"{found[1]:.2f}{found[0][len(peer) :]}")
    if "failure" in auto:
        return [*first, f"**{auto['failure']}**", "", "", *last, "", ""]
    mine = ratio(row, AUTO)
    shown = auto["shown"] if auto["within"] else f"**{auto['shown']}**"
    return [
        *first,
        "" if mine is None else f"**{mine:.2f}**" if mine > _SLOWER else f"{mine:.2f}",
        f"{auto['bytes'] / (wide['bytes'] or 1):.2f}",
        shown,
        *last,
        str(auto["counters"].get("evaluations", 0)),
        f"{auto['build']:.1f}",
    ]


def summary(rows: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield sentences on all models together."""
    measured = [row for row in rows if "forms" in row]
    built = [row for row in measured if "failure" not in row["forms"][AUTO]]
    shares = [(row, share) for row in built if (share := ratio(row, AUTO)) is not None]
    if not shares:
        return
    within = sum(row["forms"][AUTO]["within"] for row in built)
    slower = sum(share > _SLOWER for _, share in shares)
    yield f"- {len(rows)} models, {len(measured)} run as fp32, {len(built)} built by `auto`."
    yield f"- Within the limit on fresh samples: {within} of {len(built)}."
    yield f"- Slower than fp32: {slower}."
    yield f"- Speed-up over fp32, geometric mean: {1 / _mean([s for _, s in shares]):.2f}."
    passes = sorted(
        row["forms"][AUTO]["build"] / (row["samples"] * row["forms"][WIDE]["sample"])
        for row in built
    )
    middle, few = passes[len(passes) // 2], sum(count <= _PASSES for count in passes)
    yield (
        f"- A build takes as long as {middle:.0f} passes of fp32 over its samples (median), timing "
        f"of kernels included; {_PASSES} at most for {few} of {len(passes)}."
    )
    fixed = [share / best_fixed(row)[1] for row, share in shares]
    yield f"- Over the best fixed type of ours within the limit: {1 / _mean(fixed):.2f}."
    for name in FIXED:
        always = [share / (ratio(row, name) or 1.0) for row, share in shares]
        yield f"- Over {name} where it is within the limit, else fp32: {1 / _mean(always):.2f}."
    for peer in _PEERS:
        found = [(share / best[1]) for row, share in shares if (best := best_of_peer(row, peer))]
        if found:
            yield (
                f"- Over {peer}'s best form within the limit, float32 among them "
                f"({len(found)} models): {1 / _mean(found):.2f}."
            )
    names = {name for row in measured for name in row["forms"]} - {AUTO, WIDE, *FIXED, *_PEERS}
    for name in sorted(names):
        forms = [row["forms"][name] for row in measured if name in row["forms"]]
        run = [form for form in forms if "failure" not in form]
        within = sum(form["within"] for form in run)
        seconds = sorted(form["build"] for form in run)
        middle = f"; median of its builds {seconds[len(seconds) // 2]:.0f} s" if seconds else ""
        yield f"- {name}: {len(run)} of {len(forms)} built and run, {within} within{middle}."


def _mean(shares: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, shares)) / len(shares))


def figure(rows: Sequence[dict[str, Any]]) -> str:
    """Draw the speed-up over fp32 as bars, and that of the best fixed type as marks."""
    known = sorted(
        (
            (1 / share, 1 / best_fixed(row)[1], row["model"])
            for row in rows
            if (share := ratio(row, AUTO)) is not None
        ),
        reverse=True,
    )
    height, left, width = 18, 350, 450
    most = max((max(a, b) for a, b, _ in known), default=2.0)
    scale = width / math.log2(max(most, 2.0))
    size = f'width="{left + width + 60}" height="{height * (len(known) + 2)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="12">',
        f'<text x="{left}" y="14">speed-up over fp32; line: the best fixed type</text>',
    ]
    for index, (mine, fixed, name) in enumerate(known):
        y = height * (index + 1)
        long, mark = scale * max(math.log2(mine), 0.0), left + scale * max(math.log2(fixed), 0.0)
        parts += [
            f'<text x="{left - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{left}" y="{y + 3}" width="{long:.1f}" height="{height - 6}" fill="#2a7"/>',
            f'<path d="M{mark:.1f} {y + 1}v{height - 2}" stroke="#222" stroke-width="2"/>',
            f'<text x="{max(left + long, mark) + 8:.1f}" y="{y + 13}">{mine:.2f}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"
