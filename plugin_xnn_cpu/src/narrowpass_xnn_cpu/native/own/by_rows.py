"""Which kernel multiplies so many rows with a matrix that is packed already.

=================  ===================================  ==========================================
rows               matrix                               kernel
=================  ===================================  ==========================================
up to `MOST_ROWS`  panels of float32, float16 or int8   `FewRows`, which reads them in 8 to 12
                                                        streams: two thirds of the time
from `LEAST_ROWS`  panels of int8, on AVX-512           `UpcastMatmul`, which upcasts a weight once
                                                        for a band of rows, not for every seven
otherwise          any                                  the one that packed it
=================  ===================================  ==========================================
"""

from __future__ import annotations

from typing import Self

from narrowpass_xnn_cpu.native.own.few_rows import MOST_ROWS, FewRows
from narrowpass_xnn_cpu.native.own.panels import Panels
from narrowpass_xnn_cpu.native.own.upcast import LEAST_ROWS, UpcastMatmul, widens
from narrowpass_xnn_cpu.native.problems.epilogue import Epilogue


class ByRows:
    """An operator whose packed matrix other kernels may read where it lies."""

    _few: FewRows | None = None
    _upcast: UpcastMatmul | None = None

    def panels(self) -> Panels | None:
        """Return the packed matrix, if kernels for panels read it where it lies."""
        raise NotImplementedError

    def _end(self) -> Epilogue:
        raise NotImplementedError

    def for_few_rows(self, epilogue: Epilogue | None = None) -> FewRows | None:
        """Return the operator for up to `MOST_ROWS` rows of the same matrix, if there is one.

        `epilogue` is the problem's where it is None. Rows of float32 are quantized before they come
        to it, where this operator does that.
        """
        panels = self.panels() if self._few is None else None
        if panels is not None:
            self._few = FewRows(panels, epilogue or self._end())
        return self._few

    def for_rows(self, rows: int, epilogue: Epilogue) -> Self | FewRows | UpcastMatmul:
        """Return the operator for so many rows of float32: this one, or one of the same matrix."""
        if rows <= MOST_ROWS:
            return self.for_few_rows(epilogue) or self
        if rows < LEAST_ROWS:
            return self
        if self._upcast is None and widens():
            panels = self.panels()
            if panels is not None and panels.layout.name == "NP_PANELS_INT8":
                self._upcast = UpcastMatmul(panels, epilogue.limits)
        return self._upcast or self
