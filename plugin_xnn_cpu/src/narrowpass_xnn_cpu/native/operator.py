"""What operators on a tape have in common, XNNPACK's and ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from narrowpass.framework.arguments import Uncopied
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.weights_cache import Session

Fields = Mapping[str, Any]
"""Of a struct of the C side, by name."""


class Operator(Uncopied):
    """A kernel with its constants: created once, reshaped when sizes change.

    Attributes:
        call: which setup a tape uses; a name of ``enum np_call``.
        handle: XNNPACK's handle; NULL for a kernel of ours.
        workspace: bytes of scratch memory that a run needs, after `reshape`.
        params: of a kernel of ours, after `reshape`; None for one of XNNPACK.
        maker: of the kernel, as it stands before the kernel's name.
    """

    call: str
    maker = ""

    _instead = "programs that are compiled again share it"

    def __init__(self) -> None:
        self.workspace = 0
        self.params: Any = None
        self._session: Session | None = None
        self._ffi = extension().ffi
        self._lib = extension().lib
        self.handle: Any = self._ffi.NULL
