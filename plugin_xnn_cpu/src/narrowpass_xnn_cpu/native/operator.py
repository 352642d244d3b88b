"""The base class of operators on a tape, XNNPACK's and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narrowpass_ir.arguments import Uncopied
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.weights_cache import Session

Fields = Mapping[str, Any]
"""Fields of a C struct, by name."""


class Operator(Uncopied):
    """A kernel with its constants: created once, reshaped when sizes change.

    Attributes:
        call: name in ``enum np_call``, by which a tape runs it.
        handle: XNNPACK's handle; NULL for a kernel of ours.
        workspace: bytes of scratch memory that a run needs; set by `reshape`.
        params: C parameters of a kernel of ours, set by `reshape`; None for XNNPACK's.
        prefix: prefix of the kernel's name in plans: ``"xnn "``, or empty for ours.
    """

    call: str
    prefix = ""

    _instead = "programs that are compiled again share it"

    def __init__(self) -> None:
        self.workspace = 0
        self.params: Any = None
        self._session: Session | None = None
        self._ffi = extension().ffi
        self._lib = extension().lib
        self.handle: Any = self._ffi.NULL

    @property
    def holds_size(self) -> bool:
        """Whether a reshape changes runs that were set up before: XNNPACK's `handle` has sizes."""
        return bool(self.handle != self._ffi.NULL)
