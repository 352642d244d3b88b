"""Compares the pass `fold` with other tools that fold and clean up ONNX models.

    python benchmarks/passes/folding.py FOLDER [--light] [--models NAME ...] [MODEL.onnx ...]

The models of ``benchmarks/export.py`` are exported to FOLDER if they are missing, by each exporter;
``--light`` adds the nine that the onnx package ships. Each tool runs in a process of its own, in
turn: narrowpass, onnxsim, onnxslim, onnxoptimizer, onnxscript and onnxruntime's basic level; one
that is not installed is left out. For each: nodes (of all graphs and functions), seconds for
reading, optimizing and writing, peak memory, the change of the file's size, and which of the rules
the result breaks:

- outputs: they differ from the original's by more than 1e-4 of the largest (onnxruntime without its
  optimizations, two sizes of the dynamic dimensions), or the result does not run;
- inputs, outputs: a name, a type, a shape or the order is another, or a default was lost;
- checker: onnx's full check refuses the result, and not the original;
- grows: the file is larger.

Needs the dependency groups ``models`` and ``folding``.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from equal_outputs import light_models, run
from folding_tools import TOOLS
from rich.console import Console
from rich.table import Table

import narrowpass
from narrowpass_analysis.metrics import relative
from narrowpass_testing import random_feeds

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of `zoo`
import zoo

Array = np.ndarray[Any, Any]

TOLERANCE = 1e-4
SIZES = ({"batch": 1, "sequence": 7}, {"batch": 2, "sequence": 16})


@dataclass
class Row:
    """The result of one tool on one model.

    Attributes:
        model: the model's file name.
        tool: the tool; empty for the model itself.
        nodes: nodes of all graphs and functions; None where the tool failed.
        seconds: reading, optimizing and writing.
        megabytes: peak memory above that after the imports.
        growth: bytes that the file has more than the original.
        relative: the largest difference of an output, as a share of its largest value.
        broken: the rules that the result breaks.
        failure: why there is no result.
    """

    model: str
    tool: str = ""
    nodes: int | None = None
    seconds: float | None = None
    megabytes: float | None = None
    growth: int | None = None
    relative: float | None = None
    broken: list[str] = field(default_factory=list)
    failure: str = ""


def count(model: onnx.ModelProto) -> int:
    """Count the nodes of all graphs and functions."""

    def within(container: onnx.GraphProto | onnx.FunctionProto) -> int:
        total = len(container.node)
        for node in container.node:
            for attribute in node.attribute:
                total += sum(map(within, attribute.graphs))
                total += within(attribute.g) if attribute.HasField("g") else 0
        return total

    return within(model.graph) + sum(map(within, model.functions))


def signature(model: onnx.ModelProto) -> dict[str, list[bytes]]:
    """Return what a caller relies on: inputs and outputs, without their comments."""

    def plain(values: Any) -> list[bytes]:
        return [
            onnx.ValueInfoProto(name=value.name, type=value.type).SerializeToString(
                deterministic=True
            )
            for value in values
        ]

    given = {value.name for value in model.graph.input}
    defaults = sorted(item.name for item in model.graph.initializer if item.name in given)
    return {
        "inputs": plain(model.graph.input),
        "outputs": plain(model.graph.output),
        "defaults": [name.encode() for name in defaults],
    }


def size_of(path: Path) -> int:
    """Return the bytes of a model with all files beside it that have its name."""
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def feeds_for(path: Path, seed: int, sizes: Mapping[str, int]) -> dict[str, Array]:
    """Return feeds: those of the zoo for its models, random ones for others."""
    name = path.stem.rsplit("-", 1)[0]
    if name in zoo.MODELS:
        return zoo.feeds(name, seed, **sizes)
    return dict(random_feeds(narrowpass.load_model(path), seed, sizes=dict(sizes)))


def difference(expected: Mapping[str, Array], path: Path, feeds: Mapping[str, Array]) -> float:
    """Return the largest difference of an output of the model at `path` from what is expected."""
    actual = run(path, feeds)
    worst = 0.0
    for name, value in expected.items():
        got = actual.get(name)
        if got is None or got.shape != value.shape or got.dtype != value.dtype:
            return float("inf")
        worst = max(worst, relative(got, value))
    return worst


def checked(path: Path) -> bool:
    """Whether onnx's full check accepts the model."""
    try:
        onnx.checker.check_model(path, full_check=True)
    except Exception:  # noqa: BLE001  # it raises errors of several kinds
        return False
    return True


def compare(path: Path, tools: list[str], timeout: float, scratch: Path) -> Iterator[Row]:
    """Yield a row for the model, and one for each tool."""
    original = onnx.load(path, load_external_data=False)
    yield Row(path.stem, nodes=count(original))
    cases = [(feeds_for(path, seed, sizes), sizes) for seed, sizes in enumerate(SIZES)]
    expected = [run(path, feeds) for feeds, _ in cases]
    fine = checked(path)
    for tool in tools:
        folder = scratch / tool
        folder.mkdir()
        target = folder / path.name
        row = Row(path.stem, tool)
        call = [sys.executable, str(Path(__file__).with_name("folding_tools.py")), tool]
        try:
            done = subprocess.run(
                [*call, str(path), str(target)],
                check=False,
                capture_output=True,
                text=True,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired:
            row.failure = f"no end within {timeout:.0f} s"
        else:
            if done.returncode or not target.exists():
                lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
                row.failure = lines[-1][:60]
            else:
                _judge(row, json.loads(done.stdout.splitlines()[-1]), original, path, target)
                for (feeds, _), due in zip(cases, expected, strict=True):
                    _check_outputs(row, due, target, feeds)
                if fine and not checked(target):
                    row.broken.append("checker")
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        yield row


def _judge(
    row: Row, report: Mapping[str, float], original: onnx.ModelProto, path: Path, target: Path
) -> None:
    result = onnx.load(target, load_external_data=False)
    row.nodes = count(result)
    row.seconds, row.megabytes = report["seconds"], report["megabytes"]
    row.growth = size_of(target) - size_of(path)
    before, after = signature(original), signature(result)
    row.broken += [name for name in before if before[name] != after[name]]
    if row.growth > 0:
        row.broken.append("grows")


def _check_outputs(
    row: Row, due: Mapping[str, Array], target: Path, feeds: Mapping[str, Array]
) -> None:
    try:
        found = difference(due, target, feeds)
    except Exception:  # noqa: BLE001  # onnxruntime's errors are of many kinds
        found = float("inf")
    row.relative = max(row.relative or 0.0, found)
    if found > TOLERANCE and "outputs" not in row.broken:
        row.broken.append("outputs")


def verdict(rows: list[Row]) -> str:
    """Say of one model whether a tool that keeps the rules leaves fewer nodes than narrowpass."""
    ours = next((row for row in rows if row.tool == "narrowpass"), None)
    others = [row for row in rows if row.tool not in ("", "narrowpass") and not row.broken]
    legal = [row for row in others if row.nodes is not None]
    if ours is None or ours.nodes is None or not legal:
        return ""
    best = min(legal, key=lambda row: row.nodes or 0)
    return f"best other {best.nodes} ({best.tool})"


def show(rows: list[Row]) -> None:
    """Print the table of one model."""
    table = Table(title=f"{rows[0].model}: {rows[0].nodes} nodes; {verdict(rows)}")
    for column in ("tool", "nodes", "seconds", "MB", "bytes more", "rel", "breaks"):
        table.add_column(column, justify="left" if column in ("tool", "breaks") else "right")
    for row in rows[1:]:
        if row.failure:
            table.add_row(row.tool, "-", "-", "-", "-", "-", row.failure)
            continue
        table.add_row(
            row.tool,
            str(row.nodes),
            f"{row.seconds:.2f}",
            f"{row.megabytes:.0f}",
            f"{row.growth:+,}",
            f"{row.relative:.1e}",
            ", ".join(row.broken),
        )
    Console(width=110).print(table)


def main() -> None:
    """Read the command line, compare, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("paths", nargs="*", type=Path, metavar="MODEL.onnx")
    parser.add_argument("--models", nargs="*", default=list(zoo.MODELS), choices=zoo.MODELS)
    parser.add_argument("--light", action="store_true", help="add the models that onnx ships")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each tool")
    parser.add_argument("--json", type=Path, help="write all rows to a file")
    arguments = parser.parse_intermixed_args()
    tools = [tool.__name__ for tool in TOOLS if importlib.util.find_spec(tool.__name__)]
    missing = {tool.__name__ for tool in TOOLS} - set(tools)
    if missing:
        print(f"not installed: {', '.join(sorted(missing))}", file=sys.stderr)
    paths = [
        zoo.export(name, exporter, arguments.folder)
        for name in arguments.models
        for exporter in zoo.EXPORTERS
    ]
    every: list[Row] = []
    for path in [*paths, *arguments.paths, *(light_models() if arguments.light else [])]:
        with tempfile.TemporaryDirectory() as scratch:
            rows = list(compare(path, tools, arguments.timeout, Path(scratch)))
        show(rows)
        every += rows
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in every], indent=1), "utf-8")


if __name__ == "__main__":
    main()
