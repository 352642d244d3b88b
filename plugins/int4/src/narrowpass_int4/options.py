"""How weights are quantized and stored: what the options of the pass ask for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Options:
    """How weights are quantized and stored.

    Attributes:
        block: elements along K that share a scale; None for all of them.
        symmetric: whether there are no zero points.
        method: what chooses the integers.
        format: ``qdq`` or ``nbits``.
        scales: ``float16``, or ``weight`` for the dtype of the weight.
        activations: ``float``, or ``dynamic`` for rows that are quantized when the model runs.
        tolerance: the largest relative error of a layer; None for any.
    """

    block: int | None
    symmetric: bool
    method: str
    format: str
    scales: str
    activations: str
    tolerance: float | None
