"""Helpers of the tests of the reference backend."""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from narrowpass.bundle import Bundle
from narrowpass.runtime.backend import CompileOptions
from narrowpass_reference import ReferenceBackend

sys.path.insert(0, str(Path(__file__).parent))  # for runtime_kit


@pytest.fixture
def parse():
    """Return a model of the IR from ONNX text."""

    def create(text: str) -> ir.Model:
        return ir.from_proto(onnx.parser.parse_model(text))

    return create


@pytest.fixture
def compile_text(parse):
    """Compile ONNX text, or several by method name, to a program."""

    def create(text: str | dict[str, str], keep=()):
        texts = {"main": text} if isinstance(text, str) else text
        bundle = Bundle({name: parse(one) for name, one in texts.items()})
        return ReferenceBackend().compile(bundle, CompileOptions(keep=tuple(keep)))

    return create
