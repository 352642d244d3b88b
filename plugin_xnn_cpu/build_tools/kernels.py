"""What cffi reads of the C sources, from ``csrc/kernels.def``: the calls of the tape."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CSRC = Path(__file__).resolve().parent.parent / "csrc"

RUNTIME = (
    *("runtime/dispatch.h", "runtime/loop.h", "runtime/weights_cache.h", "runtime/workers.h"),
    "xnnpack/allocator.h",
)
"""Headers that Python calls whatever kernels there are."""


@dataclass(frozen=True)
class Row:
    """A row of ``kernels.def``.

    Attributes:
        call: a name of ``enum np_call``.
        params: its struct of parameters; empty for an operator of XNNPACK.
        file: what defines the struct, below ``csrc``; empty for an operator of XNNPACK.
    """

    call: str
    params: str
    file: str


_ROW = re.compile(
    r"^NP_OPERATOR\((?P<operator>\w+),"
    r'|^NP_(?:CONVERTED|KERNEL)\((?P<kernel>\w+),\s*\w+,\s*(?P<params>\w+),\s*"'
    r'(?P<file>[^"]+)",',
    re.MULTILINE,
)


def rows() -> list[Row]:
    """Return the rows, in their order, which is that of the calls' numbers."""
    text = (CSRC / "kernels.def").read_text(encoding="utf-8")
    return [
        Row(f"NP_{row['operator'] or row['kernel']}", row["params"] or "", row["file"] or "")
        for row in _ROW.finditer(text)
    ]


_INCLUDE = re.compile(r'^#include "(.+)"$', re.MULTILINE)
_CONSTANT = re.compile(
    r"^#define ((?:NP|XNN)_\w+) +((?:0x)?[0-9a-fA-F]+u?)(?: */\*[^*\n]*(?:\*/)?)?$"
)


def headers() -> list[str]:
    """Return the headers that cffi reads, each after those that it includes."""
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name not in ordered:
            for included in _INCLUDE.findall((CSRC / name).read_text(encoding="utf-8")):
                visit(included)
            if name not in ordered:
                ordered.append(name)

    files = {row.file: None for row in rows() if row.file.endswith(".h")}
    for name in (*files, *RUNTIME):
        visit(name)
    return ordered


def _structs() -> Iterator[str]:
    """Yield the constants and structs of parameters that C files define, as they stand there."""
    wanted: dict[str, dict[str, None]] = {}
    for row in rows():
        if row.file.endswith(".c"):
            wanted.setdefault(row.file, {})[row.params] = None
    for file, names in wanted.items():
        text = (CSRC / file).read_text(encoding="utf-8")
        yield from (line for line in text.splitlines() if _CONSTANT.match(line))
        for name in names:
            match = re.search(rf"^struct {name} \{{$.*?^\}};$", text, re.MULTILINE | re.DOTALL)
            if match is None:
                raise SystemExit(f"kernels.def: {file} does not define struct {name}")
            yield match[0]


def source() -> str:
    """Return what the C code of the extension begins with."""
    lines = [f'#include "{name}"' for name in (*headers(), "runtime/calls.h")]
    return "\n".join([*lines, *_structs(), ""])


def declarations() -> str:
    """Return the same as cffi reads it: no directives but simple constants."""
    lines = [f"enum np_call {{ {', '.join(row.call for row in rows())} }};"]
    for name in headers():
        lines += (CSRC / name).read_text(encoding="utf-8").splitlines()
    for text in _structs():
        lines += text.splitlines()
    kept = []
    for line in lines:
        constant = _CONSTANT.match(line)
        if constant:
            kept.append(f"#define {constant[1]} {constant[2]}")
        elif not line.startswith("#"):
            kept.append(line)
    return "\n".join(kept)
