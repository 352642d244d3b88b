"""Lowers torch's form of a model to ExecuTorch's XNNPACK backend, as it is or quantized."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import export_executorch
import zoo

from forms.source import Source


def plain(source: Source, target: Path) -> None:
    """Leave the model in float32."""
    export_executorch.export(source.name, target, source.sequence)


def static(source: Source, target: Path) -> None:
    """Fix the scales of activations by calibration."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

    _quantize(source, target, [XnnpackPartitioner()], is_dynamic=False)


def dynamic(source: Source, target: Path) -> None:
    """Quantize activations as they come."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
        XnnpackDynamicallyQuantizedPartitioner,
        XnnpackPartitioner,
    )

    partitioners = [XnnpackDynamicallyQuantizedPartitioner(), XnnpackPartitioner()]
    _quantize(source, target, partitioners, is_dynamic=True)


def _quantize(source: Source, target: Path, partitioners: list[Any], *, is_dynamic: bool) -> None:
    import torch
    from executorch.backends.xnnpack.quantizer.xnnpack_quantizer import (
        XNNPACKQuantizer,
        get_symmetric_quantization_config,
    )
    from executorch.exir import to_edge_transform_and_lower
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    samples = [
        tuple(torch.from_numpy(array) for array in feeds.values()) for feeds in source.samples()
    ]

    class Quantizer(XNNPACKQuantizer):  # type: ignore[misc]  # it has no types
        def transform_for_annotation(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
            """Make tensors of scalars for additions, which are static; they break int64 ones."""
            return model if is_dynamic else super().transform_for_annotation(model)

    quantizer = Quantizer().set_global(
        get_symmetric_quantization_config(is_per_channel=True, is_dynamic=is_dynamic)
    )
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        model = torch.export.export(zoo.make(source.name), samples[0]).module()
        observed = prepare_pt2e(model, quantizer)
        for sample in samples:
            observed(*sample)
        program = torch.export.export(convert_pt2e(observed), samples[0])
        lowered = to_edge_transform_and_lower(program, partitioner=partitioners)
        target.write_bytes(lowered.to_executorch().buffer)
