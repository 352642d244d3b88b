"""Instruments: what watches a pipeline run without taking part in it.

This module imports neither onnx nor numpy, so that a plugin's entry module may import it.
"""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import onnx_ir as ir

    from narrowpass.framework.context import Context
    from narrowpass.framework.passes import Pass, PassResult


@dataclass
class Instrument(abc.ABC):
    """Called for every pass of a pipeline. All methods do nothing unless overridden.

    A subclass is a dataclass; its init fields are the options of its text form
    ``name{option=value}``, as for a pass. An instrument must not change the model.

    Attributes:
        name: what ``build --instrument NAME`` says.
    """

    name: ClassVar[str]

    def before_pass(self, pass_: Pass, model: ir.Model, ctx: Context) -> None:
        """Called before `pass_` runs on `model`."""
        return

    def progress(self, pass_: Pass, what: str, done: int, total: int) -> None:
        """Called while a pass is at long work.

        Args:
            pass_: the pass.
            what: what is being done, such as ``calibrating``.
            done: how much of it is done.
            total: how much there is; 0 where that is not known.
        """
        return

    def after_pass(self, pass_: Pass, result: PassResult, ctx: Context, seconds: float) -> None:
        """Called after a pass that succeeded and whose model verified.

        Args:
            pass_: the pass.
            result: what it gave.
            ctx: its context, with the counters and decisions of this pass.
            seconds: how long `Pass.run` took.
        """
        return

    def failed(self, pass_: Pass, error: Exception) -> None:
        """Called when a pass raised, or left a model that does not verify."""
        return

    def finish(self) -> None:
        """Called after the last pass of a pipeline that succeeded."""
        return
