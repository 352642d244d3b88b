"""XNNPACK's operators: created once, reshaped when sizes change, freed with the object.

Every constructor and `reshape` checks what XNNPACK would assert or take silently. Sizes are in
elements, and inputs and outputs are dense: [N, H, W, C] for images, rows of channels otherwise.
"""

from __future__ import annotations

from narrowpass_xnn_cpu.native.operators.base import UNBOUNDED, Operator, Range
from narrowpass_xnn_cpu.native.operators.convolution import Convolution, Deconvolution, Movement
from narrowpass_xnn_cpu.native.operators.elementwise import Binary, Unary
from narrowpass_xnn_cpu.native.operators.int8 import Quantization, Requantized
from narrowpass_xnn_cpu.native.operators.int8_rows import FullyConnectedS8, FullyConnectedS8F32
from narrowpass_xnn_cpu.native.operators.int8_tensors import BinaryS8, MeanS8
from narrowpass_xnn_cpu.native.operators.int8_windows import ConvolutionS8, DeconvolutionS8
from narrowpass_xnn_cpu.native.operators.linear import FullyConnected
from narrowpass_xnn_cpu.native.operators.movement import Pad, ResizeBilinear, Transpose
from narrowpass_xnn_cpu.native.operators.pooling import MaxPoolS8
from narrowpass_xnn_cpu.native.operators.quantized import FullyConnectedInt8, UnfitError
from narrowpass_xnn_cpu.native.operators.rows import Reduce, Softmax

__all__ = [
    "UNBOUNDED",
    "Binary",
    "BinaryS8",
    "Convolution",
    "ConvolutionS8",
    "Deconvolution",
    "DeconvolutionS8",
    "FullyConnected",
    "FullyConnectedInt8",
    "FullyConnectedS8",
    "FullyConnectedS8F32",
    "MaxPoolS8",
    "MeanS8",
    "Movement",
    "Operator",
    "Pad",
    "Quantization",
    "Range",
    "Reduce",
    "Requantized",
    "ResizeBilinear",
    "Softmax",
    "Transpose",
    "Unary",
    "UnfitError",
]
