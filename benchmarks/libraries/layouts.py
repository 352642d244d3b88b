"""Compare the layout of graphs with ELK and Graphviz.

``python benchmarks/libraries/layouts.py MODEL [--copies N] [--elk FOLDER] [--limit SECONDS]``: the
main graph of an ONNX model, N of it in a row. FOLDER is where ``npm install elkjs`` was run, and
Graphviz is the program ``dot``. What is not there is left out, and what does not end within the
limit is stopped.

Prints, for each tool, once for all edges and once for those that ours draws a line for: seconds;
the size of the drawing; the length of lines; and crossings of lines of different values. Lines of a
value to several readers are one line as far as they lie upon each other.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import narrowpass
from narrowpass_report.layout import Edge, lay_out
from narrowpass_report.nodes import GraphData
from narrowpass_report.texts import Texts

Line = tuple[float, float, float, float, int]
"""x and y of both ends, and the value."""

Drawn = tuple[float, list[Line]]
"""Seconds, and the lines."""

ELK = """
const ELK = require(process.argv[1] + "/node_modules/elkjs/lib/main.js");
const graph = JSON.parse(require("fs").readFileSync(0));
const started = performance.now();
new ELK().layout(graph).then((done) => {
  const seconds = (performance.now() - started) / 1000;
  const lines = done.edges.map(({ id, sections }) => [
    id, sections.map((s) => [s.startPoint, ...(s.bendPoints || []), s.endPoint]),
  ]);
  console.log(JSON.stringify({ seconds, lines }));
});
"""


def graph_of(path: Path, copies: int) -> tuple[list[tuple[int, int]], list[Edge]]:
    """Return widths and heights of the nodes of a model's graph, and its edges.

    Each further copy reads what the last node of the one before it computes.
    """
    data = GraphData(narrowpass.load_model(path).graph, Texts(), Texts()).to_json()
    sizes = list(zip(data["sizes"][::2], data["sizes"][1::2], strict=True))
    makers = {v: n for n, entry in enumerate(data["nodes"]) for v in entry.get("out", ())}
    edges = [
        Edge(value, makers[value], index)
        for index, entry in enumerate(data["nodes"])
        for value in dict.fromkeys(entry.get("in", ()))
        if value in makers
    ]
    count, values = len(sizes), len(data["values"])
    all_edges = []
    for copy in range(copies):
        node, value = copy * count, copy * values
        all_edges += [Edge(e.value + value, e.source + node, e.target + node) for e in edges]
        if copy:
            all_edges.append(Edge(-copy, node - 1, node))
    return sizes * copies, all_edges


def by_narrowpass(sizes: Sequence[tuple[int, int]], edges: Sequence[Edge]) -> Drawn:
    """Lay out with the module of the report."""
    started = time.perf_counter()
    layout = lay_out(sizes, edges)
    seconds = time.perf_counter() - started
    tops = [(layout.x[n], layout.tops[layer]) for n, layer in enumerate(layout.layers)]
    bottoms = [(x, y + sizes[n][1]) for n, (x, y) in enumerate(tops)]
    tops += [(x, layout.tops[first]) for x, first, _ in layout.runs]
    bottoms += [(x, layout.tops[last] + layout.heights[last]) for x, _, last in layout.runs]
    lines = [(*bottoms[upper], *tops[lower], value) for upper, lower, value in layout.segments]
    ends: dict[int, int] = {lower: value for _, lower, value in layout.segments}
    for run in range(len(layout.runs)):
        point = len(sizes) + run
        lines.append((*tops[point], *bottoms[point], ends[point]))
    return seconds, lines


def by_elk(
    folder: Path, limit: int
) -> Callable[[Sequence[tuple[int, int]], Sequence[Edge]], Drawn]:
    """Return a function that lays out with ELK's layered algorithm, by Node."""

    def draw(sizes: Sequence[tuple[int, int]], edges: Sequence[Edge]) -> Drawn:
        options = {"algorithm": "layered", "elk.direction": "DOWN", "elk.edgeRouting": "POLYLINE"}
        graph = {
            "id": "root",
            "layoutOptions": options,
            "children": [{"id": str(n), "width": w, "height": h} for n, (w, h) in enumerate(sizes)],
            "edges": [
                {"id": str(n), "sources": [str(edge.source)], "targets": [str(edge.target)]}
                for n, edge in enumerate(edges)
            ],
        }
        command = "node", "--stack-size=30000", "--max-old-space-size=6000", "-e", ELK
        found = json.loads(run([*command, folder.resolve()], json.dumps(graph), limit))
        lines = [
            (a["x"], a["y"], b["x"], b["y"], edges[int(number)].value)
            for number, sections in found["lines"]
            for points in sections
            for a, b in pairwise(points)
        ]
        return found["seconds"], lines

    return draw


def by_graphviz(limit: int) -> Callable[[Sequence[tuple[int, int]], Sequence[Edge]], Drawn]:
    """Return a function that lays out with dot, its lines as polylines."""

    def draw(sizes: Sequence[tuple[int, int]], edges: Sequence[Edge]) -> Drawn:
        text = ["digraph {", "splines=polyline; node [shape=box, fixedsize=true];"]
        text += [f"{n} [width={w / 72}, height={h / 72}];" for n, (w, h) in enumerate(sizes)]
        text += [f"{e.source} -> {e.target} [comment={e.value}];" for e in edges]
        started = time.perf_counter()
        found = json.loads(run(["dot", "-Tjson0"], "\n".join([*text, "}"]), limit))
        seconds = time.perf_counter() - started
        lines = []
        for edge in found["edges"]:
            # "e,x,y" is the arrow's tip; then the ends and controls of cubic curves, here straight.
            spots = [part.split(",") for part in edge["pos"].split()]
            points = [(float(p[-2]), -float(p[-1])) for p in spots if p[0] not in ("e", "s")][::3]
            lines += [(*a, *b, int(edge["comment"])) for a, b in pairwise(points)]
        return seconds, lines

    return draw


def run(command: Sequence[str | Path], text: str, limit: int) -> str:
    """Run a program on a text within a time, and return what it prints."""
    words = [*map(str, command)]
    done = subprocess.run(
        words, input=text, check=False, capture_output=True, text=True, timeout=limit
    )
    if done.returncode:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-200:].strip()}")
    return done.stdout


def crossings(lines: Sequence[Line]) -> int:
    """Count pairs of lines of different values that cross within, by their orientations."""
    distinct = sorted({line for line in lines if line[:2] != line[2:4]})
    ends: NDArray[np.float64] = np.array([line[:4] for line in distinct])
    values = np.array([line[4] for line in distinct])
    tops, bottoms = ends[:, [1, 3]].min(1), ends[:, [1, 3]].max(1)
    order = np.argsort(tops, kind="stable")
    ends, values, tops, bottoms = ends[order], values[order], tops[order], bottoms[order]
    total = 0
    for index in range(len(ends)):
        last = int(np.searchsorted(tops, bottoms[index], side="left"))
        others = ends[index + 1 : last]
        x0, y0, x1, y1 = ends[index]
        side = (x1 - x0) * (others[:, 1::2] - y0) - (y1 - y0) * (others[:, ::2] - x0)
        back = (others[:, 2:3] - others[:, 0:1]) * (np.array([y0, y1]) - others[:, 1:2]) - (
            others[:, 3:4] - others[:, 1:2]
        ) * (np.array([x0, x1]) - others[:, 0:1])
        cross = (
            (side.prod(1) < 0) & (back.prod(1) < 0) & (values[index + 1 : last] != values[index])
        )
        total += int(cross.sum())
    return total


def row(name: str, drawn: Drawn) -> str:
    """Return a row of the table."""
    seconds, lines = drawn
    ends = np.array([line[:4] for line in set(lines)])
    width, height = np.ptp(ends[:, ::2]), np.ptp(ends[:, 1::2])
    length = np.hypot(ends[:, 0] - ends[:, 2], ends[:, 1] - ends[:, 3]).sum()
    return (
        f"| {name} | {seconds:.1f} | {width:,.0f} x {height:,.0f} | {length / 1000:,.0f} "
        f"| {crossings(lines):,} |"
    )


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--copies", type=int, default=1)
    parser.add_argument("--elk", type=Path, help="where `npm install elkjs` was run")
    parser.add_argument("--limit", type=int, default=300, help="seconds for each program")
    arguments = parser.parse_args()
    sizes, edges = graph_of(arguments.model, arguments.copies)
    far = set(lay_out(sizes, edges).far)
    near = [edge for number, edge in enumerate(edges) if number not in far]
    tools: dict[str, Callable[[Sequence[tuple[int, int]], Sequence[Edge]], Drawn]]
    tools = {"narrowpass": by_narrowpass}
    if arguments.elk is not None:
        tools["ELK"] = by_elk(arguments.elk, arguments.limit)
    if shutil.which("dot"):
        tools["Graphviz"] = by_graphviz(arguments.limit)
    for some, text in ((near, "that ours draws"), (edges, "all")):
        print(f"{len(sizes):,} nodes, {len(some):,} edges: {text}\n")
        print("| tool | seconds | width x height | length, thousands | crossings |")
        print("|---|---|---|---|---|", flush=True)
        for name, draw in tools.items():
            try:
                print(row(name, draw(sizes, some)), flush=True)
            except subprocess.TimeoutExpired:
                print(f"| {name} | stopped after {arguments.limit} s | | | |", flush=True)
            except RuntimeError as error:
                print(f"| {name} | failed: {error} | | | |", flush=True)
        print()


if __name__ == "__main__":
    main()
