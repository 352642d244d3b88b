"""Another quantizer in a process of its own, whose Python has the packages that it needs."""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

Array = np.ndarray[Any, Any]

TOOLS = Path(__file__).parent / "tools"


class PeerError(Exception):
    """Another quantizer is not installed, or cannot quantize the model."""


class Peer:
    """Quantizes the decoder with another tool, and runs what results.

    The process reads a line of JSON for each request and writes one for each answer; logits follow
    theirs as bytes.

    Args:
        interpreter: a Python that has the packages.
        tool: ``onnxruntime`` or ``nncf``.
        form: method and block.
        folder: where the quantized model goes.
    """

    def __init__(self, interpreter: str, tool: str, form: str, folder: Path) -> None:
        self._name = f"{tool} {form}"
        self._folder, self._form = folder, form
        command = [interpreter, str(TOOLS / f"by_{tool}.py")]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End the process."""
        self._process.communicate()

    def quantize(self, model: Path, samples: Sequence[Array]) -> float:
        """Quantize a model, and prepare to run it; return the bits of a weight of its layers.

        Raises:
            PeerError: it cannot be done; the message is that of the tool.
        """
        method, block = self._form.split(" ")
        ids = [sample[0].tolist() for sample in samples]
        answer = self._ask(
            {
                "model": str(model),
                "method": method,
                "block": int(block),
                "folder": str(self._folder),
                "samples": ids,
            }
        )
        return float(answer["bits"])

    def run(self, ids: Array) -> Array:
        """Return the logits, float32 [tokens, vocabulary], of ids [1, tokens]."""
        shape = self._ask({"ids": ids[0].tolist()})["shape"]
        logits = np.empty(shape, np.float32)
        waiting = memoryview(logits.reshape(-1).view(np.uint8))
        pipe: Any = self._process.stdout
        while waiting:
            count = pipe.readinto(waiting)
            if not count:
                raise PeerError(f"{self._name} ended")
            waiting = waiting[count:]
        return logits

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        stdin, stdout = self._process.stdin, self._process.stdout
        if stdin is None or stdout is None:
            raise PeerError(f"{self._name} has no pipes")
        with contextlib.suppress(BrokenPipeError):  # then there is no answer either
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
        line = stdout.readline()
        if not line:
            raise PeerError(f"{self._name} ended; its messages are above")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise PeerError(answer["error"])
        return answer
