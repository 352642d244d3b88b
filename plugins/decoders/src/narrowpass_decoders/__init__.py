"""A library of language models as graphs: a configuration and weights become ONNX models.

Importers use it: they read sizes and weights from files of their format, and call `build_decoder`
or `build_encoder`.
"""

from __future__ import annotations

from narrowpass_decoders.config import ACTIVATIONS, Config, Rotary
from narrowpass_decoders.decoder import build_decoder
from narrowpass_decoders.encoder import EncoderConfig, build_encoder
from narrowpass_decoders.rotary import rotary
from narrowpass_decoders.weights import Blocks, Dense, Matrix, OffsetBlocks, Weights

__all__ = [
    "ACTIVATIONS",
    "Blocks",
    "Config",
    "Dense",
    "EncoderConfig",
    "Matrix",
    "OffsetBlocks",
    "Rotary",
    "Weights",
    "build_decoder",
    "build_encoder",
    "rotary",
]
