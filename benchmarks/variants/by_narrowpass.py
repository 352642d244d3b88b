"""Narrows with this project."""

from __future__ import annotations

from pathlib import Path

from variants.source import Source


def build(source: Source, target: Path, pipeline: str) -> None:
    """Do what ``narrowpass build MODEL -p PIPELINE --calibration FOLDER -o TARGET`` does."""
    import narrowpass

    narrowpass.build(
        source.model,
        pipeline,
        out=target,
        target="xnn-cpu",
        calibration=str(source.calibration),
    )


def plain(source: Source, target: Path) -> None:
    """Leave the model in float32."""
    build(source, target, "fold")


def bfloat16(source: Source, target: Path) -> None:
    """Compute in bfloat16; inputs and outputs keep their types."""
    build(source, target, "fold,fp16{dtype=bfloat16}")


def static(source: Source, target: Path) -> None:
    """Fix the scales of activations by calibration."""
    build(source, target, "fold,int8-sym{mode=static}")


def dynamic(source: Source, target: Path) -> None:
    """Quantize activations as they come."""
    build(source, target, "fold,int8-sym{mode=dynamic}")
