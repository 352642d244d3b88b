"""Draw the architecture page's picture of the folders from the imports: `python tools/rooms.py`.

Each room is a folder of Python modules, in a row above all that it imports. Imports of every kind
count: at the top of a module, inside functions, and for types. Rooms that import each other in a
circle are an error.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from svg import Box, draw_box, draw_text, picture

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "images" / "rooms.svg"
NATIVE = "narrowpass_xnn_cpu"


@dataclass(frozen=True)
class Room:
    """A folder in the picture.

    Attributes:
        name: its path, or the last part of it.
        package: the Python package that it has.
        purpose: what it is for.
        strong: whether it is part of the native backend.
    """

    name: str
    package: str
    purpose: str
    strong: bool = False


ROOMS = (
    Room("core", "narrowpass", "passes, plugins, bundles, backends, calibration"),
    Room("core/…/narrowpass_ir", "narrowpass_ir", "load, save, verify, inference"),
    Room("plugins/analysis", "narrowpass_analysis", "run, compare, metrics"),
    Room("plugins/auto", "narrowpass_auto", "types within an error"),
    Room("plugins/constant_folding", "narrowpass_constant_folding", "fold, fuse, clean up"),
    Room("plugins/decoders", "narrowpass_decoders", "graphs of language models"),
    Room("plugins/demo", "narrowpass_demo", "narrowpass demo"),
    Room("plugins/expansion", "narrowpass_expansion", "simpler operators"),
    Room("plugins/generate", "narrowpass_generate", "tokens, texts, chat"),
    Room("plugins/gguf", "narrowpass_gguf", "reads GGUF"),
    Room("plugins/hello", "narrowpass_hello", "the smallest plugin"),
    Room("plugins/huggingface", "narrowpass_huggingface", "reads folders of transformers"),
    Room("plugins/int4", "narrowpass_int4", "4-bit weights"),
    Room("plugins/onnxruntime", "narrowpass_onnxruntime", "provider, InferenceSession"),
    Room("plugins/planning", "narrowpass_planning", "partitions, arena, weights cache"),
    Room("plugins/ray", "narrowpass_ray", "batch jobs on clusters"),
    Room("plugins/reference", "narrowpass_reference", "oracle and fallback"),
    Room("plugins/report", "narrowpass_report", "HTML of a build"),
    Room("plugins/serve", "narrowpass_serve", "HTTP and gRPC"),
    Room("plugins/signing", "narrowpass_signing", "signatures of bundles"),
    Room("plugins/testing", "narrowpass_testing", "test kit of plugins"),
    Room("plugin_fp16", "narrowpass_fp16", "min cut of casts"),
    Room("plugin_int8_sym", "narrowpass_int8_sym", "calibration, Q/DQ"),
    Room("plugin_xnn_cpu", NATIVE, "backend, stages, program", strong=True),
    Room("lower/", f"{NATIVE}.lower", "nodes to LoweredOps", strong=True),
    Room("lowered/", f"{NATIVE}.lowered", "plan: verify, print, pack", strong=True),
    Room("native/", f"{NATIVE}.native", "kernel table, packing, tape", strong=True),
)
LIBRARY = Room("csrc/", "", "micro-kernels in C", strong=True)
"""What `native/` loads as an extension module; drawn in the row below it."""


def modules() -> dict[str, Path]:
    """Return the files of all packages by module name."""
    folders = ("core", "plugins/*", "plugin_*")
    sources = [source for folder in folders for source in ROOT.glob(f"{folder}/src")]
    found = {}
    for source in sources:
        for file in source.glob("*/**/*.py"):
            parts = file.relative_to(source).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def room_of(module: str) -> Room | None:
    """Return the room whose package is the longest prefix of a module's name."""
    fitting = [r for r in ROOMS if f"{module}.".startswith(f"{r.package}.")]
    return max(fitting, key=lambda room: len(room.package), default=None)


def imported(file: Path, known: dict[str, Path]) -> Iterator[str]:
    """Yield the modules that a file imports; of a name, the module it is or lies in."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in known else node.module


def dependencies() -> dict[tuple[str, str], str]:
    """Return pairs of names of rooms, each with a module that has such an import."""
    known = modules()
    found: dict[tuple[str, str], str] = {}
    for module, file in sorted(known.items()):
        room = room_of(module)
        for name in imported(file, known):
            other = room_of(name)
            if room is not None and other is not None and room is not other:
                found.setdefault((room.name, other.name), f"{module} imports {name}")
    return found


def levels(found: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return the level of each room: one above the highest of those that it imports, 0 for none.

    Raises:
        SystemExit: rooms import each other in a circle.
    """
    edges = {room.name: {b for a, b in found if a == room.name} for room in ROOMS}
    level: dict[str, int] = {}
    while len(level) < len(edges):
        ready = {name for name, after in edges.items() if name not in level and after <= {*level}}
        if not ready:
            sys.exit(f"these import each other: {', '.join(sorted({*edges} - {*level}))}")
        level |= {name: max((level[b] + 1 for b in edges[name]), default=0) for name in ready}
    return level


def imports() -> dict[str, set[str]]:
    """Return the modules that each module imports, those for types included."""
    known = modules()
    return {
        module: {name for name in imported(file, known) if name in known and name != module}
        for module, file in known.items()
    }


def in_cycles(edges: dict[str, set[str]]) -> list[str]:
    """Return the nodes of a graph that lie on a cycle, or on a path between two; sorted."""
    left = edges
    while left:
        read: set[str] = set().union(*left.values())
        outside = {node for node, after in left.items() if not after or node not in read}
        if not outside:
            break
        left = {node: after - outside for node, after in left.items() if node not in outside}
    return sorted(left)


def reduced(edges: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the edges of an acyclic graph that do not follow from others."""
    after = {one: {b for a, b in edges if a == one} for one, _ in edges}

    def reaches(start: str, end: str) -> bool:
        return any(step == end or reaches(step, end) for step in after.get(start, ()))

    return {
        (one, other)
        for one, other in edges
        if not any(step != other and reaches(step, other) for step in after[one])
    }


WIDTH, GAP, ROW = 960, 8, 66
LETTER = 6.9
"""Pixels of a letter, on the safe side: the text of a picture does not depend on fonts."""


def _width(lines: Iterable[str]) -> float:
    return max(96.0, 18 + LETTER * max(map(len, lines)))


def _short(name: str) -> str:
    return name.removeprefix("plugins/").removeprefix("plugin_").rstrip("/")


def _rows(rooms: Sequence[tuple[Room, tuple[str, ...]]]) -> Iterator[list[tuple[Room, Box]]]:
    """Yield rows of boxes from the left, none wider than the picture; all tops are 0."""
    row: list[tuple[Room, Box]] = []
    left = float(GAP)
    for room, notes in rooms:
        width = _width((room.name, *notes))
        if row and left + width > WIDTH - GAP:
            yield row
            row, left = [], float(GAP)
        row.append((room, Box(left, 0, width, ROW, room.name, notes, room.strong)))
        left += width + GAP
    yield row


def _stretched(row: Sequence[tuple[Room, Box]], top: float) -> Iterator[Box]:
    """Yield the boxes of a row at their height, together as wide as the picture."""
    last = row[-1][1]
    more = (WIDTH - GAP - last.left - last.width) / len(row)
    for place, (_, box) in enumerate(row):
        yield replace(box, left=box.left + place * more, width=box.width + more, top=top)


def draw() -> str:
    """Return the picture: a row or more for each level, the highest first.

    A box names the rooms that it imports, without those that follow from others.
    """
    found = set(dependencies())
    level, direct = levels(found), reduced(found)
    parts, top = [], 28.0
    for height in sorted({*level.values()}, reverse=True):
        rooms = []
        for room in (*ROOMS, LIBRARY):
            at = level["native/"] - 1 if room is LIBRARY else level[room.name]
            below = sorted(_short(b) for a, b in direct if a == room.name)
            below += ["csrc"] if room.name == "native/" else []
            if at == height:
                notes = (room.purpose, f"↓ {', '.join(below)}") if below else (room.purpose,)
                rooms.append((room, notes))
        for row in _rows(rooms):
            parts += [draw_box(box) for box in _stretched(row, top)]
            top += ROW + GAP
        top += GAP
    head = draw_text(
        GAP, 18, "A folder imports only from rows below it; ↓ names what.", anchor="start"
    )
    return picture(WIDTH, int(top), "Folders of the repository, and their imports.", [head, *parts])


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(draw(), encoding="utf-8")
