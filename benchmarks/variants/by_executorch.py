"""Lowers torch's form of a model to ExecuTorch's XNNPACK backend, as it is or quantized."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import zoo

from variants.source import Source

if TYPE_CHECKING:
    from variants.executorch_lowering import Inputs


def plain(source: Source, target: Path) -> None:
    """Leave the model in float32."""
    from variants import executorch_lowering

    executorch_lowering.plain(zoo.build(source.name), _samples(source)[0], target)


def static(source: Source, target: Path) -> None:
    """Fix the scales of activations by calibration."""
    from variants import executorch_lowering

    executorch_lowering.static(zoo.build(source.name), _samples(source), target)


def dynamic(source: Source, target: Path) -> None:
    """Quantize activations as they come."""
    from variants import executorch_lowering

    executorch_lowering.dynamic(zoo.build(source.name), _samples(source)[0], target)


def _samples(source: Source) -> list[Inputs]:
    import torch

    return [
        tuple(torch.from_numpy(array) for array in feeds.values()) for feeds in source.samples()
    ]
