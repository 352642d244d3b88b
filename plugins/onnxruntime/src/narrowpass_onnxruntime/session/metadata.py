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
        """Return what `to_json` was called for.

        Raises:
            KeyError: a field is missing.
            TypeError: a field is something else.
        """
        metadata = _mapping(document["metadata"])
        names = ("producer_name", "graph_name", "domain", "description", "graph_description")
        return cls(
            inputs=_args(document["inputs"]),
            outputs=_args(document["outputs"]),
            overridable=_args(document["overridable"]),
            metadata=ModelMetadata(
                **{name: checked(metadata[name], str) for name in names},
                version=checked(metadata["version"], int),
                custom_metadata_map={
                    name: checked(text, str)
                    for name, text in _mapping(metadata["custom_metadata_map"]).items()
                },
            ),
            classes={
                name: several(each, int, str)
                for name, each in _mapping(document["classes"]).items()
            },
            initializers=several(document["initializers"], str),
            denotations={
                name: several(each, str) for name, each in _mapping(document["denotations"]).items()
            },
        )


def checked(value: Any, *kinds: type) -> Any:
    """Return a value that is of one of some types, exactly.

    Raises:
        TypeError: it is of another.
    """
    if type(value) not in kinds:
        raise TypeError(f"{value!r:.60} is not {' or '.join(kind.__name__ for kind in kinds)}")
    return value


def several(values: Any, *kinds: type) -> tuple[Any, ...]:
    """Return the values of a list, each checked. Raises as `checked` does."""
    return tuple(checked(value, *kinds) for value in checked(values, list))


def _mapping(value: Any) -> dict[str, Any]:
    return dict(checked(value, dict))


def _args(values: Any) -> tuple[NodeArg, ...]:
    return tuple(
        NodeArg(
            checked(arg["name"], str),
            checked(arg["type"], str),
            list(several(arg["shape"], int, str, type(None))),
        )
        for arg in several(values, dict)
    )
