"""The process of another quantizer: reads requests, quantizes once, then computes logits."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Run = Callable[[Array], Array]
Quantize = Callable[[dict[str, Any]], tuple[Run, float]]
"""Returns what computes logits of ids [1, tokens], and the bits of a weight, of a request."""


class Reader:
    """Feeds calibration, as onnxruntime reads it.

    Args:
        samples: ids [tokens] each.
    """

    def __init__(self, samples: list[list[int]]) -> None:
        self._samples = iter(samples)

    def get_next(self) -> dict[str, Array] | None:
        """Return the next feeds, or None."""
        ids = next(self._samples, None)
        return None if ids is None else {"ids": np.array([ids], np.int64)}


def answer(quantize: Quantize) -> None:
    """Answer the requests on stdin until it ends; errors of the tool are answers."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what the tool prints is no answer
    run: Run | None = None
    for line in sys.stdin:
        request = json.loads(line)
        logits: Array | None = None
        try:
            if run is None:
                run, bits = quantize(request)
                found: dict[str, Any] = {"bits": bits}
            else:
                logits = np.ascontiguousarray(run(np.array([request["ids"]], np.int64)), np.float32)
                found = {"shape": logits.shape}
        except Exception as error:  # noqa: BLE001  # what the tool cannot do is what is asked
            found = {"error": f"{type(error).__name__}: {error}"}
        answers.write(json.dumps(found).encode() + b"\n")
        if logits is not None:
            answers.write(logits.tobytes())
        answers.flush()
