"""A model with its feeds: what is judged, shrunk and kept."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from narrowpass_testing.random_models._elements import Array


@dataclass
class Case:
    """A model, feeds for it, and what is known about them.

    Attributes:
        model: to run.
        feeds: arrays by input, lists of them for sequences.
        sizes: what the symbols of the inputs' dimensions stand for in `feeds`.
        slack: the absolute error that one quantum of a last rounding may bring.
    """

    model: onnx.ModelProto
    feeds: dict[str, Any]
    sizes: dict[str, int] = field(default_factory=dict)
    slack: float = 0.0

    def resized(self, sizes: Mapping[str, int]) -> dict[str, Array]:
        """Return feeds for other sizes of the symbols: the elements of `feeds`, repeated."""
        found = {}
        for info in self.model.graph.input:
            array = self.feeds.get(info.name)
            if array is None:
                continue  # it has a default
            dims = info.type.tensor_type.shape.dim
            shape = [sizes[d.dim_param] if d.dim_param else d.dim_value for d in dims]
            found[info.name] = (
                np.resize(array, shape) if array.size else np.ones(shape, array.dtype)
            )
        return found

    def save(self, folder: Path, name: str, notes: Mapping[str, str]) -> Path:
        """Write ``NAME.case``: a zip with the model as text and as protobuf, feeds, and notes.

        The text is for readers; what is run again is the protobuf, which is exact.
        """
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{name}.case"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("model.onnxtxt", onnx.printer.to_text(self.model))
            file.writestr("model.onnx", self.model.SerializeToString())
            facts = {"sizes": self.sizes, "slack": self.slack, "inputs": list(self.feeds)}
            file.writestr("notes.json", json.dumps({**facts, **notes}, indent=2))
            for index, (key, array) in enumerate(self.feeds.items()):
                tensor = numpy_helper.from_array(array, key)  # it has types that numpy lacks
                file.writestr(f"{index}.pb", tensor.SerializeToString())
        return path

    @classmethod
    def load(cls, path: Path) -> Case:
        """Read what `save` wrote."""
        with zipfile.ZipFile(io.BytesIO(path.read_bytes())) as file:
            notes = json.loads(file.read("notes.json"))
            model = onnx.load_model_from_string(file.read("model.onnx"))
            feeds = {}
            for index, key in enumerate(notes["inputs"]):
                tensor = onnx.TensorProto.FromString(file.read(f"{index}.pb"))
                feeds[key] = numpy_helper.to_array(tensor)
        return cls(model, feeds, notes["sizes"], notes["slack"])


@dataclass(frozen=True)
class Finding:
    """What is wrong with one subject on one case.

    Attributes:
        kind: a word for the class, such as ``wrong``, ``refused``, ``exception``, ``contract`` or
            ``other bits``.
        subject: the name of what is tested.
        message: the details.
    """

    kind: str
    subject: str
    message: str

    def __str__(self) -> str:
        return f"{self.kind} on {self.subject}: {self.message}"
