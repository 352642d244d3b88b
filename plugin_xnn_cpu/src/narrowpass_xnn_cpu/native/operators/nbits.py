"""Products with a matrix of 4 or 8 bits in blocks, by our own kernel.

The matrix is never widened in memory. Up to 4 rows, where reading it takes longest, weights become
floats in registers; with more, a panel of 32 columns is widened a part at a time, beside the rows
that it is multiplied with.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import (
    UNBOUNDED,
    Range,
    checked_range,
    checked_shape,
)
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Array, Blocks, Weight, digest


class BlockedProduct(tiled.Tiled):
    """Rows of float32 times a constant matrix of few bits.

    Args:
        matrix: [O, C].
        bias: float32 [O], or None.
        limits: what the output is clamped to.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        BackendError: sizes that do not fit together.
    """

    call = "NP_NBITS"
    layout = "NP_NBITS_LAYOUT"

    def __init__(
        self,
        matrix: Blocks,
        bias: Weight | None,
        limits: Range = UNBOUNDED,
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        outputs, width = checked_shape(matrix.integers.shape, 2)
        inputs, block, bits = matrix.columns, matrix.size, matrix.bits
        blocks = -(-inputs // block)
        if bits not in (4, 8) or block < 8 or block % 8 or width != blocks * block:
            raise BackendError(f"blocks of {block} do not fit {inputs} inputs of {bits} bits")
        for given in (matrix.scale, *((matrix.zero,) if matrix.zero is not None else ())):
            if given.shape != (outputs, blocks):
                raise BackendError(f"{list(given.shape)} are not {blocks} for each of {outputs}")
        if bias is not None and (bias.shape != (outputs,) or bias.dtype != np.float32):
            raise BackendError(f"a bias must be float32[{outputs}], not {list(bias.shape)}")
        self.channels, self.outputs = inputs, outputs
        self._limits = checked_range(limits)
        self._sizes = block, bits
        bytes_ = matrix.integers.then(
            "as bytes", lambda array: array.astype(np.uint8), dtype=np.dtype(np.uint8)
        )
        layout = outputs, inputs, block, bits
        lib = self._lib
        self._pack_own(
            session,
            layout,
            bytes_,
            bias,
            _numbers(matrix),
            lib.np_nbits_packed_size(*layout),
            lambda to, k, b, s: lib.np_nbits_pack(*layout, k, s, b, to),
        )

    def reshape(self, rows: int, pool: ThreadPool) -> Any:
        """Take `rows` rows; give the parameters of the product."""
        checked_shape((rows, max(self.channels, self.outputs)))
        lib = self._lib
        few = rows <= lib.NP_NBITS_GEMV_ROWS
        scratch = 0 if few else (lib.NP_NBITS_K_BLOCK + rows) * lib.NP_NBITS_COLUMNS
        self.workspace = 4 * pool.threads * scratch
        low, high = map(tiled.float32, self._limits)
        block, bits = self._sizes
        fields = {
            "packed": self._packed_weights,
            "rows": rows,
            "inputs": self.channels,
            "outputs": self.outputs,
            "block": block,
            "bits": bits,
            "low": low,
            "high": high,
            "target": tiled.target(),
            "thread_scratch": scratch,
        }
        self.params = self._ffi.new("struct np_nbits_params *", fields)
        return self.params


def _numbers(matrix: Blocks) -> Weight:
    """Give scales and zero points, one after the other, as float32."""
    scale, zero = matrix.scale, matrix.zero

    def make() -> Array:
        scales = scale.array().astype(np.float32)
        zeros = np.zeros_like(scales) if zero is None else zero.array().astype(np.float32)
        return np.stack([scales, zeros])

    parts = [scale.identity] if zero is None else [scale.identity, zero.identity]
    identity = digest("scales and zero points", *parts) if all(parts) else ""
    return Weight((2, *scale.shape), np.dtype(np.float32), identity, make, scale.drop)
