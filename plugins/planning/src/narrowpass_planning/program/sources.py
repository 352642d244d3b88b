"""What the methods of a program are compiled from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from narrowpass.runtime.backend import CompileOptions
from narrowpass_planning.weights.cache import WeightsCache
from narrowpass_planning.weights.packer import Packer

if TYPE_CHECKING:
    from narrowpass.bundle import Bundle


@dataclass(frozen=True)
class Sources:
    """What a program's methods are compiled from.

    Attributes:
        bundle: with the models.
        options: of the program.
        cache: the process's cache of the backend's packed weights.
        packer: identifies the packing code.
    """

    bundle: Bundle
    options: CompileOptions
    cache: WeightsCache[Any]
    packer: Packer
