"""What callers ask about a model: its inputs, outputs and metadata, as onnxruntime reports them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

Dim = int | str | None
"""A dimension: its size, its symbolic name, or unknown."""

NO_VERSION = 2**63 - 1
"""What onnxruntime reports as the version of a model that has none."""


@dataclass(frozen=True)
class NodeArg:
    """An input or output; it has the attributes of ``onnxruntime.NodeArg``.

    Attributes:
        name: its name.
        type: such as ``tensor(float)`` or ``seq(tensor(int64))``.
        shape: the dimensions of a tensor; empty for a scalar, an unknown rank, and other types.
    """

    name: str
    type: str
    shape: list[Dim]

    def __str__(self) -> str:
        """The text that onnxruntime prints of its class."""
        return f"NodeArg(name='{self.name}', type='{self.type}', shape={self.shape})"


@dataclass(frozen=True)
class ModelMetadata:
    """The metadata of a model; it has the attributes of ``onnxruntime.ModelMetadata``."""

    producer_name: str = ""
    graph_name: str = ""
    domain: str = ""
    description: str = ""
    graph_description: str = ""
    version: int = NO_VERSION
    custom_metadata_map: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Interface:
    """What callers know of a model.

    Attributes:
        inputs: those that must be fed.
        outputs: in order.
        overridable: inputs with defaults.
        metadata: of the model.
        classes: for each output that is a list of maps, the classes that its columns are of.
        initializers: names of the initializers.
        denotations: of the inputs' dimensions, by input name, where there are any.
    """

    inputs: tuple[NodeArg, ...]
    outputs: tuple[NodeArg, ...]
    overridable: tuple[NodeArg, ...]
    metadata: ModelMetadata
    classes: Mapping[str, tuple[int | str, ...]]
    initializers: tuple[str, ...]
    denotations: Mapping[str, tuple[str, ...]]

    def to_json(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return {
            "inputs": [vars(arg) for arg in self.inputs],
            "outputs": [vars(arg) for arg in self.outputs],
            "overridable": [vars(arg) for arg in self.overridable],
            "metadata": vars(self.metadata),
            "classes": {name: list(classes) for name, classes in self.classes.items()},
            "initializers": list(self.initializers),
            "denotations": {name: list(each) for name, each in self.denotations.items()},
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Self:
        """Return what `to_json` was called for."""
        return cls(
            inputs=tuple(NodeArg(**arg) for arg in document["inputs"]),
            outputs=tuple(NodeArg(**arg) for arg in document["outputs"]),
            overridable=tuple(NodeArg(**arg) for arg in document["overridable"]),
            metadata=ModelMetadata(**document["metadata"]),
            classes={name: tuple(each) for name, each in document["classes"].items()},
            initializers=tuple(document["initializers"]),
            denotations={name: tuple(each) for name, each in document["denotations"].items()},
        )
