"""The models of the gallery by name, each built or fetched when it is needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Feeds = dict[str, Array]


@dataclass(frozen=True)
class Model:
    """One model.

    Attributes:
        name: what tables call it.
        group: ``package``, ``transformers``, ``torch`` or a form of quantization.
        build: writes the file, if it is missing, and returns its path.
        sizes: of dimensions that are not fixed, by the dimension's name, or by ``input.axis``.
        values: feeds that are not drawn, by name.
    """

    name: str
    group: str
    build: Callable[[Path], Path]
    sizes: Mapping[str, int] = field(default_factory=dict)
    values: Mapping[str, Array] = field(default_factory=dict)


def collect() -> list[Model]:
    """Return all models that can be built with what is installed."""
    from gallery import architectures, nets, packages, quantized, trained

    plain = [*packages.models(), *trained.models(), *architectures.models(), *nets.models()]
    return [*plain, *quantized.models(plain)]
