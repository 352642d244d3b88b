"""A model is packed, compiled and run: after a call that failed, the same process does it again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

import narrowpass
from faults.models import IMAGE, network
from narrowpass import Bundle
from narrowpass.errors import NarrowpassError

MOST = 0.02
"""Of the largest result: `DynamicQuantizeLinear` rounds to 1/255 of the range, twice."""


class Compiling:
    """Nothing is on disk. onnx's evaluator says what is right."""

    def __init__(self, folder: Path) -> None:
        from onnx.reference import ReferenceEvaluator

        del folder
        self.proto = network()
        self.right = ReferenceEvaluator(self.proto).run(None, {"x": IMAGE})[0]
        self.run()  # imports, and what is set up once for a process

    def run(self) -> None:
        """Pack, compile and run."""
        bundle = Bundle({"main": ir.from_proto(self.proto)})
        with narrowpass.load(bundle, "xnn-cpu", threads=2, cache="memory") as program:
            for _ in range(3):
                self.check(program.run({"x": IMAGE})["y"])

    def check(self, result: Any) -> None:
        """Compare a result."""
        if not np.allclose(result, self.right, rtol=0, atol=MOST * self.right.max()):
            raise AssertionError("a wrong result")

    def act(self) -> str:
        """Run; where that fails, again: one call fails only."""
        said = "done"
        try:
            self.run()
        except NarrowpassError as error:
            said = "a clear error" if len(str(error)) > 20 else f"an unclear error: {error}"
        except MemoryError:
            said = "MemoryError"
        if said != "done":
            self.run()
        return said

    def look(self, outcome: str) -> str:
        """There is nothing to look at: `act` has run it again."""
        del outcome
        return "right again"
