"""Lowers modules of PyTorch to ExecuTorch's XNNPACK backend, as they are or quantized.

A program is for inputs of the sizes of its example inputs. Needs the dependency group
``executorch``; what a file cannot hold, as more than 2 GB, ExecuTorch says by itself.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackDynamicallyQuantizedPartitioner,
    XnnpackPartitioner,
)
from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
    XNNPACKQuantizer,
    get_symmetric_quantization_config,
)
from executorch.exir import to_edge_transform_and_lower
from torch import Tensor, nn
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

Inputs = tuple[Tensor, ...]


def plain(module: nn.Module, given: Inputs, target: Path) -> None:
    """Write a program that computes in float32."""
    _lower(module, given, [XnnpackPartitioner()], target)


def static(module: nn.Module, samples: Sequence[Inputs], target: Path) -> None:
    """Write a program whose scales of activations are those of the samples."""
    _lower(module, samples[0], [XnnpackPartitioner()], target, _quantize(samples, dynamic=False))


def dynamic(module: nn.Module, given: Inputs, target: Path) -> None:
    """Write a program that quantizes rows as they come."""
    partitioners = [XnnpackDynamicallyQuantizedPartitioner(), XnnpackPartitioner()]
    _lower(module, given, partitioners, target, _quantize([given], dynamic=True))


class _DynamicQuantizer(XNNPACKQuantizer):
    def transform_for_annotation(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Leave scalars alone: built tensors, which is for static forms, they break int64."""
        return model


def _quantize(samples: Sequence[Inputs], *, dynamic: bool) -> Callable[[Any], Any]:
    def quantize(exported: Any) -> Any:
        quantizer = _DynamicQuantizer() if dynamic else XNNPACKQuantizer()
        config = get_symmetric_quantization_config(is_per_channel=True, is_dynamic=dynamic)
        observed = prepare_pt2e(exported, quantizer.set_global(config))
        for sample in samples:
            observed(*sample)
        return convert_pt2e(observed)

    return quantize


def _lower(
    module: nn.Module,
    given: Inputs,
    partitioners: list[Any],
    target: Path,
    quantize: Callable[[Any], Any] | None = None,
) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, given)
        if quantize is not None:
            program = torch.export.export(quantize(program.module()), given)
        lowered = to_edge_transform_and_lower(program, partitioner=partitioners)
        target.write_bytes(lowered.to_executorch().buffer)
