"""Dispatch by the number of rows among kernels that read the same packed matrix.

=================  ===================================  ==========================================
rows               matrix                               kernel
=================  ===================================  ==========================================
up to `MAX_ROWS`   panels of float32, float16 or int8   `Gemv`, which reads them in 8 to 12
                                                        streams: two thirds of the time
from `MIN_ROWS`    panels of int8, on AVX-512; without  `UpcastMatmul`, which upcasts a weight once
or any             FMA with any number of rows          for a row tile, not for every seven rows
otherwise          any                                  the operator that packed the matrix
=================  ===================================  ==========================================
"""

from __future__ import annotations

from typing import Self

from narrowpass_xnn_cpu.native.own.gemv import MAX_ROWS, Gemv
from narrowpass_xnn_cpu.native.own.panels import Panels
from narrowpass_xnn_cpu.native.own.upcast import UpcastMatmul, upcasts
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue


class RowDispatch:
    """Mixin of an operator whose packed matrix the GEMV and upcasting kernels may read too."""

    _few: Gemv | None = None
    _upcast: UpcastMatmul | None = None

    def panels(self) -> Panels | None:
        """Return the packed matrix; None if those kernels do not read its layout."""
        raise NotImplementedError

    def _default_epilogue(self) -> Epilogue:
        raise NotImplementedError

    def gemv(self, epilogue: Epilogue | None = None) -> Gemv | None:
        """Return the operator for up to `MAX_ROWS` rows of the same matrix, if there is one.

        Where this operator quantizes rows dynamically, so does its caller before a GEMV.

        Args:
            epilogue: the fused epilogue; None for the problem's.
        """
        panels = self.panels() if self._few is None else None
        if panels is not None:
            self._few = Gemv(panels, epilogue or self._default_epilogue())
        return self._few

    def for_rows(self, rows: int, epilogue: Epilogue) -> Self | Gemv | UpcastMatmul:
        """Return the fastest operator for so many float32 rows: this or one of the same matrix."""
        if rows <= MAX_ROWS:
            return self.gemv(epilogue) or self
        if not upcasts(rows):
            return self
        if self._upcast is None:
            panels = self.panels()
            if panels is not None and panels.layout.name == "NP_PANELS_INT8":
                self._upcast = UpcastMatmul(panels, epilogue.limits)
        return self._upcast or self
