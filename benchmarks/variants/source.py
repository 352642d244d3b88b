"""The float32 model that all tools start from, and the data that they calibrate with."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import zoo
from runners import Feeds

_SEED = 1


@dataclass(frozen=True)
class Source:
    """One model of float32 with everything that quantizing it takes.

    Attributes:
        name: one of `zoo.MODELS`.
        model: the ONNX file, with all dimensions fixed: the batch is 1.
        calibration: a folder of ``.npz`` files, one sample each.
        sequence: tokens of a sample; images have no use for it.
    """

    name: str
    model: Path
    calibration: Path
    sequence: int

    @property
    def convolutional(self) -> bool:
        """Return whether it is a convolutional network, and not a transformer."""
        return zoo.MODELS[self.name].module == "convolutional"

    def feeds(self, seed: int) -> Feeds:
        """Build random feeds: an image of unit variance, or tokens without padding."""
        return zoo.feeds(self.name, seed, 1, self.sequence)

    def samples(self) -> Iterator[Feeds]:
        """Yield the samples of the folder, one after the other."""
        for path in sorted(self.calibration.iterdir()):
            with np.load(path) as arrays:
                yield dict(arrays)


def prepare(name: str, folder: Path, sequence: int, count: int) -> Source:
    """Export a model and write its samples, unless they are in the folder already."""
    model = folder / f"{name}.onnx"
    if not model.exists():
        exported = onnx.load(zoo.export(name, folder))
        _fix(exported, {"batch": 1, "sequence": sequence})
        onnx.save(exported, model)
    calibration = folder / f"{name}-calibration"
    calibration.mkdir(exist_ok=True)
    source = Source(name, model, calibration, sequence)
    for seed in range(_SEED, _SEED + count):
        path = calibration / f"{seed:04}.npz"
        if not path.exists():
            np.savez(path, **source.feeds(seed))
    return source


def _fix(model: onnx.ModelProto, sizes: Mapping[str, int]) -> None:
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    del model.graph.value_info[:]  # it has the dimensions that were symbolic
