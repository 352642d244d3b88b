"""What the tests of this folder share."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest


class Plain(ir.TensorProtocol):
    """A tensor of somebody else, of what the protocol demands alone."""

    def __init__(self, array: np.ndarray, name: str = "p") -> None:
        self.name, self.doc_string, self.metadata_props, self.meta = name, None, {}, {}
        self.dtype, self.shape, self.raw = ir.DataType.FLOAT, ir.Shape(array.shape), array

    @property
    def size(self):
        return self.raw.size

    @property
    def nbytes(self):
        return self.raw.nbytes

    def numpy(self):
        return self.raw

    def tobytes(self):
        return self.raw.tobytes()


@pytest.fixture
def plain_tensor():
    """Return a class of tensors that are read by numpy and as bytes, and in no other way."""
    return Plain
