"""Draw the architecture page's picture of the folders from the imports: `python tools/rooms.py`.

Each room is a folder of Python modules. An arrow is a dependency; those that follow from others are
not drawn. Imports of every kind count: at the top of a module, inside functions, and for types.
An import that leads upwards in the picture is an error that names the module.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from svg import Box, draw_arrow, draw_box, picture

ROOT = Path(__file__).resolve().parent.parent
FILE = ROOT / "docs" / "images" / "rooms.svg"
NATIVE = "narrowpass_xnn_cpu"


@dataclass(frozen=True)
class Room:
    """A folder in the picture.

    Attributes:
        name: its path, or the last part of it.
        package: the Python package that it has.
        box: where it is drawn, with what it is for.
    """

    name: str
    package: str
    box: Box


def _room(
    left: float, top: float, name: str, package: str, *notes: str, width: float = 216,
    height: float = 62, strong: bool = False,
) -> Room:  # fmt: skip
    return Room(name, package, Box(left, top, width, height, name, notes, strong))


ROOMS = (
    _room(8, 16, "plugins/hello", "narrowpass_hello", "smallest plugin", width=110),
    _room(126, 16, "plugins/report", "narrowpass_report", "HTML of a build", width=110),
    _room(244, 16, "plugins/demo", "narrowpass_demo", "narrowpass demo", width=122),
    _room(374, 16, "plugin_int8_sym", "narrowpass_int8_sym", "calibration, Q/DQ", width=130),
    _room(8, 104, "plugins/serve", "narrowpass_serve", "HTTP, gRPC", width=104),
    _room(120, 104, "plugins/testing", "narrowpass_testing", "test kit of plugins", width=124),
    _room(252, 104, "plugins/int4", "narrowpass_int4", "4-bit weights", width=100),
    _room(468, 104, "plugins/auto", "narrowpass_auto", "types within an error", width=128),
    _room(8, 204, "plugins/generate", "narrowpass_generate", "tokens, texts, chat", width=140),
    _room(360, 104, "plugin_fp16", "narrowpass_fp16", "min cut of casts", width=100),
    _room(244, 204, "plugins/analysis", "narrowpass_analysis", "run, compare, metrics", width=260),
    _room(8, 298, "plugins/gguf", "narrowpass_gguf", "reads GGUF", width=104),
    _room(128, 298, "plugins/huggingface", "narrowpass_huggingface", "reads folders", width=140),
    _room(284, 298, "plugins/onnxruntime", "narrowpass_onnxruntime", "provider", width=150),
    _room(8, 398, "plugins/decoders", "narrowpass_decoders", "graphs of LMs", width=130),
    _room(
        380, 298, "plugins/constant_folding", "narrowpass_constant_folding", "fold, fuse, clean up",
        width=188,
    ),
    _room(604, 16, "narrowpass_xnn_cpu", NATIVE, "backend, program, gain", strong=True),
    _room(604, 104, "lower/", f"{NATIVE}.lower", "nodes → LoweredOps, stages", strong=True),
    _room(604, 204, "lowered/", f"{NATIVE}.lowered", "plan: print, verify, reload", strong=True),
    _room(604, 298, "native/", f"{NATIVE}.native", "kernel table, pack, bind, tape", strong=True),
    _room(604, 398, "plugins/planning", "narrowpass_planning", "partitions, arena, weights cache"),
    _room(380, 398, "plugins/expansion", "narrowpass_expansion", "simpler operators", width=136),
    _room(536, 488, "plugins/reference", "narrowpass_reference", "oracle and fallback", width=284),
    Room("core", "narrowpass", Box(8, 580, 944, 84, "core (narrowpass)", (
        "framework/ passes, pipelines, plugins · bundle/ files · cli/ commands",
        "runtime/ backends, programs · calibration/ samples, histograms",
    ))),
    Room("ir", "narrowpass_ir", Box(8, 694, 944, 62, "ir (narrowpass_ir)", (
        "io/ load, save, mapped tensors · verify/ · inference · errors",
    ))),
)  # fmt: skip
LIBRARY = Box(848, 298, 104, 62, "csrc/", ("micro-kernels",), strong=True)
"""C, which `native/` loads as an extension module."""


def modules() -> dict[str, Path]:
    """Return the files of all packages by module name."""
    folders = ("ir", "core", "plugins/*", "plugin_*")
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


def upward(found: dict[tuple[str, str], str]) -> list[str]:
    """Return the imports that do not lead downwards in the picture."""
    tops = {room.name: room.box.top for room in ROOMS}
    return [text for (one, other), text in sorted(found.items()) if tops[one] >= tops[other]]


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


def _arrow(one: Box, other: Box) -> str:
    """Draw an arrow down: straight where the boxes have an x in common, else around the left."""
    left, right = max(one.left, other.left), min(one.left + one.width, other.left + other.width)
    if left < right:
        x = one.middle if left < one.middle < right else (left + right) / 2
        return draw_arrow((x, one.bottom), (x, other.top))
    start, end = one.top + one.height / 2, other.top + other.height / 2
    gap = one.left - 18
    return draw_arrow((one.left, start), (gap, start), (gap, end), (other.left + other.width, end))


def draw() -> str:
    """Return the picture; an import that leads upwards raises `SystemExit`."""
    found = dependencies()
    if wrong := upward(found):
        sys.exit("\n".join(wrong))
    boxes = {room.name: room.box for room in ROOMS}
    parts = [draw_box(room.box) for room in ROOMS]
    native, middle = boxes["native/"], LIBRARY.top + LIBRARY.height / 2
    loads = draw_arrow((native.left + native.width, middle), (LIBRARY.left, middle))
    parts += [draw_box(LIBRARY), loads]
    parts += [_arrow(boxes[one], boxes[other]) for one, other in sorted(reduced(set(found)))]
    return picture(960, 768, "Folders of the repository; arrows are imports.", parts)


if __name__ == "__main__":
    FILE.parent.mkdir(exist_ok=True)
    FILE.write_text(draw(), encoding="utf-8")
