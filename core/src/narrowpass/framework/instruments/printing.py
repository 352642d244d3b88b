"""The text of the model after each pass that changed it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from narrowpass.framework.instruments import Instrument

if TYPE_CHECKING:
    from narrowpass.framework.context import Context
    from narrowpass.framework.passes import Pass, PassResult


@dataclass
class PrintAfterChange(Instrument):
    """Prints the model's text to standard error after each pass that changed it."""

    name: ClassVar[str] = "print-after-change"

    def after_pass(  # noqa: D102
        self, pass_: Pass, result: PassResult, ctx: Context, seconds: float
    ) -> None:
        if not result.modified:
            print(f"// {pass_} changed nothing", file=sys.stderr)
            return
        print(f"// after {pass_}\n{result.model}", file=sys.stderr)
