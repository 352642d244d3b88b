"""How large models are: nodes, bytes of weights, bytes on disk."""

from __future__ import annotations

import glob
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx_ir as ir


def count_nodes(model: ir.Model) -> int:
    """Return the number of nodes of the graph, its subgraphs and the model's functions."""
    total = sum(1 for _ in model.graph.all_nodes())
    return total + sum(1 for function in model.functions.values() for _ in function.all_nodes())


def count_bytes(model: ir.Model) -> int:
    """Return the bytes of all initializers; one tensor used by several counts once."""
    tensors = {
        id(value.const_value): value.const_value.nbytes
        for graph in model.graphs()
        for value in graph.initializers.values()
        if value.const_value is not None
    }
    return sum(tensors.values())


def memory_bytes(model: ir.Model) -> int:
    """Return the bytes of the graph's initializers that are not mapped from a file."""
    from narrowpass_ir.io import MappedTensor

    return sum(
        value.const_value.nbytes
        for value in model.graph.initializers.values()
        if value.const_value is not None and not isinstance(value.const_value, MappedTensor)
    )


def disk_bytes(path: str | os.PathLike[str], models: Sequence[ir.Model] = ()) -> int:
    """Return the size on disk: of all files of a folder, or of a file and its external data.

    Args:
        path: a folder or an ONNX file.
        models: for an ONNX file that was read: the model, whose tensors name its data files.
            Without it, the data files are those that narrowpass writes beside.
    """
    place = Path(path)
    if place.is_dir():
        return sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    if not models:
        data = place.parent.glob(f"{glob.escape(place.name)}.*.data")
        return place.stat().st_size + sum(file.stat().st_size for file in data)
    from narrowpass_ir.io import MappedTensor

    beside = {
        os.path.realpath(tensor.file.name): tensor.file.size
        for model in models
        for graph in model.graphs()
        for value in graph.initializers.values()
        if isinstance(tensor := value.const_value, MappedTensor)
    }
    return place.stat().st_size + sum(beside.values())
