"""Lowers the decoders of ``decoder.py`` to ExecuTorch's XNNPACK backend, as they are or quantized.

A program is of one phase, and of the sizes of its example inputs. Needs the dependency
group ``executorch``; what its files cannot hold, as more than 2 GB, it says by itself.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from decoder import SIZES, Shape
from onnx import numpy_helper
from torch import Tensor, nn
from torch.nn import functional

from variants import executorch_lowering


class Decoder(nn.Module):
    """One phase of a decoder, with the weights of an ONNX file.

    Takes ids [1, rows], positions [rows] and a mask [rows, total], and for each layer keys and
    values [1, groups, past, head] unless there are none before; returns logits [1, vocabulary], and
    keys and values [1, groups, total, head] of each layer.
    """

    def __init__(self, model: onnx.ModelProto, folder: Path, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self._weights: dict[str, Tensor] = {}
        for tensor in model.graph.initializer:
            array = numpy_helper.to_array(tensor, str(folder))
            if array.dtype == np.float32 and array.ndim:
                self._weights[tensor.name] = torch.from_numpy(array.copy())
        # XNNPACK's partitioner knows parameters of linear layers; modules are found by their names.
        self.table = nn.Embedding.from_pretrained(self._weights["embedding"])
        self.logits = self._linear(self._weights["embedding"])
        self.linears = nn.ModuleDict(
            {
                f"{layer}_{name}": self._linear(self._weights[f"{layer}.{name}"].T.contiguous())
                for layer in range(shape.layers)
                for name in ("q", "k", "v", "o", "gate", "up", "down")
            }
        )

    @staticmethod
    def _linear(matrix: Tensor) -> nn.Linear:
        linear = nn.Linear(matrix.shape[1], matrix.shape[0], bias=False)
        linear.weight = nn.Parameter(matrix, requires_grad=False)
        return linear

    def _norm(self, x: Tensor, name: str) -> Tensor:
        return functional.rms_norm(x, (self.shape.width,), self._weights[name], 1e-5)

    def _heads(self, x: Tensor, count: int) -> Tensor:
        return x.reshape(1, -1, count, self.shape.head).transpose(1, 2)

    def _rotated(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat((-second, first), -1) * sin

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor, *past: Tensor) -> Any:
        """Compute logits and caches."""
        shape = self.shape
        cos, sin = (self._weights[f"{name}.table"][positions] for name in ("cos", "sin"))
        caches = []
        x = self.table(ids)
        for layer in range(shape.layers):
            normal = self._norm(x, f"{layer}.norm1")
            q, k, v = (self.linears[f"{layer}_{name}"](normal) for name in "qkv")
            q = self._rotated(self._heads(q, shape.heads), cos, sin)
            k = self._rotated(self._heads(k, shape.groups), cos, sin)
            v = self._heads(v, shape.groups)
            if past:
                k = torch.cat((past[2 * layer], k), 2)
                v = torch.cat((past[2 * layer + 1], v), 2)
            caches += [k, v]
            each = shape.heads // shape.groups
            if each > 1:
                k, v = (item.repeat_interleave(each, 1) for item in (k, v))
            scores = q @ k.transpose(2, 3) * shape.head**-0.5 + mask
            found = (scores.softmax(-1) @ v).transpose(1, 2).reshape(1, -1, shape.width)
            x = x + self.linears[f"{layer}_o"](found)
            normal = self._norm(x, f"{layer}.norm2")
            gate, up = (self.linears[f"{layer}_{name}"](normal) for name in ("gate", "up"))
            x = x + self.linears[f"{layer}_down"](functional.silu(gate) * up)
        return self.logits(self._norm(x, "norm")[:, -1]), *caches


def lower(
    path: Path,
    size: str,
    feeds: dict[str, np.ndarray[Any, Any]],
    target: Path,
    *,
    dynamic: bool,
) -> None:
    """Write a program for inputs of the sizes of `feeds`; `dynamic` has its rows quantized.

    Args:
        path: the ONNX file of a phase.
        size: the name of its sizes, in ``decoder.SIZES``.
        feeds: inputs, in the order of the phase.
        target: the file.
        dynamic: whether matrices are int8, per output, and rows are quantized as they come.
    """
    given = tuple(torch.from_numpy(array) for array in feeds.values())
    model = Decoder(onnx.load(path, load_external_data=False), path.parent, SIZES[size])
    write = executorch_lowering.dynamic if dynamic else executorch_lowering.plain
    write(model, given, target)
