"""The kernel table as text, with what it selects on each level of instruction sets."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native import isa
from narrowpass_xnn_cpu.native.problems.convolution import ConvAttributes, Convolution
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.problems.quantization import Quantization, Requantized
from narrowpass_xnn_cpu.native.table import convolution, matmul
from narrowpass_xnn_cpu.native.table.row import Row
from narrowpass_xnn_cpu.native.table.selection import select
from narrowpass_xnn_cpu.native.target import Target

_WIDTH = 96
_SAME = Quantization(1.0, 0)
_CHANGE = Requantized(_SAME, _SAME)


def describe() -> str:
    """Return the table: for each kind of problem the kernels in order, then selections by level."""
    lines: list[str] = []
    rows: list[Row[Any, Any]] = [*convolution.ROWS, *matmul.ROWS]
    for (kind, dtypes), group in itertools.groupby(rows, lambda row: (row.kind, row.dtypes)):
        lines += ["", f"{kind}, {dtypes}"]
        for number, row in enumerate(group, 1):
            lines += _row(number, row)
    lines += ["", "selected by level"]
    for name, problem in samples():
        lines.append(f"  {name}")
        selected = {level: str(select(problem, Target.named(level))) for level in isa.LEVELS}
        for kernel in dict.fromkeys(selected.values()):
            levels = ", ".join(level for level in isa.LEVELS if selected[level] == kernel)
            lines.append(f"    {kernel}: {levels}")
    return "\n".join(lines[1:]) + "\n"


def _row(number: int, row: Row[Any, Any]) -> list[str]:
    fields = {"packing": row.packing, "where": row.where, "reason": row.reason}
    found = [f"  {number}. {row}"]
    for name, text in fields.items():
        found += textwrap.wrap(
            text, _WIDTH, initial_indent=f"     {name + ':':9}", subsequent_indent=" " * 14
        )
    return found


def _weight(dtype: Any, *shape: int) -> Weight:
    return Weight(shape, np.dtype(dtype), "", lambda: np.ones(shape, dtype))


def _int8(*shape: int) -> Quantized:
    return Quantized(_weight(np.int8, *shape), _weight(np.float32, 1), None, 0)


def samples() -> Iterator[tuple[str, Convolution | Matmul]]:
    """Yield a problem of each kind, named by its sizes."""
    same = ConvAttributes((1, 1, 1, 1))
    deep = ConvAttributes((1, 1, 1, 1), groups=64)
    strided = ConvAttributes((1, 1, 1, 1), (2, 2), groups=64)
    image = 1, 56, 56
    floats = _weight(np.float32, 64, 3, 3, 64)
    taps = _weight(np.float32, 3, 3, 64)
    brain = ml_dtypes.bfloat16
    yield "3 x 3 of 56 x 56, 64 to 64, float32", Convolution(floats, None, same, image=image)
    small = _weight(np.float32, 512, 3, 3, 512)
    yield "3 x 3 of 7 x 7, 512 to 512, float32", Convolution(small, None, same, image=(1, 7, 7))
    yield (
        "3 x 3 of 56 x 56, stride 2, float32",
        Convolution(floats, None, ConvAttributes(strides=(2, 2))),
    )
    yield "depthwise 3 x 3, float32", Convolution(taps, None, deep, depthwise=True)
    yield (
        "depthwise 3 x 3 of 56 x 56, stride 2, float32",
        Convolution(taps, None, strided, depthwise=True, image=image),
    )
    for channels in (64, 512):
        kernel = _int8(channels, 3, 3, channels)
        yield f"3 x 3, {channels} to {channels}, int8", Convolution(kernel, None, same, _CHANGE)
    yield (
        "depthwise 3 x 3, int8",
        Convolution(_int8(3, 3, 64), None, deep, _CHANGE, depthwise=True),
    )
    yield "matmul, 768 to 768, float32", Matmul(_weight(np.float32, 768, 768))
    for rows in (None, 12, 13):
        name = "unknown" if rows is None else rows
        matrix = _weight(brain, 768, 768)
        yield f"matmul, 768 to 768, bfloat16, rows: {name}", Matmul(matrix, rows=rows)
    matrix_s8 = _int8(768, 768)
    yield "matmul, 768 to 768, int8 per token", Matmul(matrix_s8, operand=PerToken())
    yield "matmul, 768 to 768, int8", Matmul(matrix_s8, None, _CHANGE)
