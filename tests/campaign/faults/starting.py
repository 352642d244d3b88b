"""What several threads do: where the system starts fewer of them, the others do all of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import narrowpass
from faults.models import X, expected, model
from narrowpass import Bundle
from narrowpass.bundle import verify
from narrowpass.errors import NarrowpassError
from narrowpass_planning.weights.file import PackedFile
from narrowpass_xnn_cpu.native.packer import PACKER


class Starting:
    """A bundle is saved and verified, loaded and run, and its packed weights are verified."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.right = expected(0)
        self.act()

    def act(self) -> str:
        """Do all of it on several threads."""
        path, cache = self.folder / "m.narrow", self.folder / "cache"
        Bundle({"main": model(0)}).save(path, threads=4)
        if verify(path, threads=2):
            return "damaged"
        try:
            with narrowpass.load(path, "xnn-cpu", threads=4, cache_dir=cache) as program:
                result = program.run({"x": X})["y"]
        except NarrowpassError as error:
            return "a clear error" if "thread" in str(error) else f"an unclear error: {error}"
        # 96 and 256 terms, accumulated in another order than numpy's.
        if not np.allclose(result, self.right, rtol=0, atol=1e-4 * np.abs(self.right).max()):
            return "a wrong result"
        files = list(cache.glob(f"*{PACKER.suffix}"))
        for packed in files:
            file = PackedFile(packed, PACKER)
            wrong = file.damaged()
            file.close()
            if wrong:
                return "damaged weights"
        return "done" if files else "nothing is cached"

    def look(self, outcome: str) -> str:
        """Do it again."""
        del outcome
        return "right again" if self.act() == "done" else "wrong again"
