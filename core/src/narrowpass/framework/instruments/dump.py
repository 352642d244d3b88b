"""The model after each pass, as ONNX files that other tools open."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from narrowpass.framework.instruments import Instrument

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.framework.context import Context
    from narrowpass.framework.passes import Pass, PassResult


@dataclass
class Dump(Instrument):
    """Writes ``00-input.onnx`` and ``NN-PASS.onnx`` after each pass into a folder.

    A pass that changed nothing is skipped; its number is not used again.
    """

    name: ClassVar[str] = "dump"

    dir: str = "narrowpass-dump"

    _count: int = field(default=0, init=False)

    def before_pass(self, pass_: Pass, model: ir.Model, ctx: Context) -> None:  # noqa: D102
        if self._count == 0:
            self._write("input", model)

    def after_pass(  # noqa: D102
        self, pass_: Pass, result: PassResult, ctx: Context, seconds: float
    ) -> None:
        self._count += 1
        if result.modified:
            self._write(pass_.name, result.model)

    def finish(self) -> None:  # noqa: D102
        self._count = 0

    def _write(self, label: str, model: ir.Model) -> None:
        from narrowpass_ir.files import create_folder
        from narrowpass_ir.io import save_model

        folder = Path(self.dir)
        create_folder(folder)
        safe = re.sub(r"[^A-Za-z0-9_.-]", "_", label)
        save_model(model, folder / f"{self._count:02d}-{safe}.onnx")
