"""Problems: frozen descriptions of what is to be computed, which never touch the native library.

Sizes are in elements, and inputs and outputs are dense: [N, H, W, C] for images, rows of channels
otherwise. `native.table` selects the kernel of a problem.
"""

from __future__ import annotations

from narrowpass_xnn_cpu.native.problems.bounds import UNBOUNDED, Range, Shape
from narrowpass_xnn_cpu.native.problems.convolution import (
    ConvAttributes,
    ConvGeometry,
    Convolution,
    DynamicScales,
    Image,
    Offsets,
)
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue
from narrowpass_xnn_cpu.native.problems.matmul import Matmul, PerToken
from narrowpass_xnn_cpu.native.problems.quantization import (
    AddS8,
    Quantization,
    Requantized,
    UnfitError,
)

__all__ = [
    "UNBOUNDED",
    "AddS8",
    "ConvAttributes",
    "ConvGeometry",
    "Convolution",
    "DynamicScales",
    "Epilogue",
    "Image",
    "Matmul",
    "Offsets",
    "PerToken",
    "Quantization",
    "Range",
    "Requantized",
    "Shape",
    "UnfitError",
]
