"""Products and convolutions with weights of bfloat16 by our own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowpass_xnn_cpu.native.epilogue import Epilogue
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import checked_shape, checked_weights
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.tiled_windows import Windows, reaches
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Weight

COLUMNS = 32
"""Of a panel: NP_BF16_COLUMNS."""
_BAND_BYTES = 3 << 17
"""Of rounded inputs that a thread reads for all columns; with a panel of weights they stay in the
second cache, or are read from the third as fast as they are needed."""
_NEAR_BYTES = 1 << 19
"""Of packed weights that stay in the second cache: a few tiles are multiplied with all of them, so
that results are written as they lie."""
_PIXELS = 48
"""Windows for which a panel of weights is read, at least."""


class TiledConvolutionBf16(tiled.Tiled):
    """A 2-D convolution over [N, H, W, C]; inputs and results are float32, sums too.

    Args:
        kernel: bfloat16 [O, KH, KW, C / groups].
        bias: float32 [O], or None.
        movement: of the window.
        epilogue: what becomes of sums; None to clamp them to the limits of `movement`.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        BackendError: what is not valid.
    """

    call = "NP_BF16_CONVOLUTION"
    layout = "NP_BF16_LAYOUT"

    def __init__(
        self,
        kernel: Weight,
        bias: Weight | None,
        movement: Movement,
        epilogue: Epilogue | None = None,
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__()
        self._windows = windows = Windows.of(kernel.shape, movement)
        self.channels, self.outputs = windows.channels, windows.outputs
        checked_weights(kernel, bias, self.outputs, "bfloat16", "float32")
        self._epilogue = Epilogue(limits=movement.limits) if epilogue is None else epilogue
        layout = movement.groups, self.outputs // movement.groups, *windows.runs
        lib = self._lib
        self._packed_size = lib.np_bf16_packed_size(*layout)
        self._pack_own(
            session,
            layout,
            kernel,
            bias,
            None,
            self._packed_size,
            lambda block, k, b, _: lib.np_bf16_pack(*layout, k, b, block),
        )

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        windows, movement = self._windows, self._windows.movement
        image, out = windows.over(shape)
        batch, _, _, channels = image
        out_height, out_width = out
        steps, image_steps = tuple(movement.strides), (1, 1)
        if windows.size == (1, 1) and not any(movement.pads):
            steps, image_steps = image_steps, steps  # what is never read is not copied
        reach = reaches(windows.size, movement)
        wide_width = (out_width - 1) * steps[1] + reach[1]
        target = tiled.target()
        size = self._lib.np_bf16_element_size(target)
        most = (_BAND_BYTES // (size * wide_width * channels) - reach[0]) // steps[0] + 1
        band, bands = tiled.even_bands(out_height, max(most, -(-_PIXELS // out_width)))
        columns, parts = tiled.column_parts(
            self.outputs // movement.groups, batch * bands, pool.threads, COLUMNS
        )
        chunk = _PIXELS if self._packed_size <= _NEAR_BYTES else band * out_width
        rows = (band - 1) * steps[0] + reach[0]
        elements = tiled.checked_elements(rows * wide_width * channels)
        scratch = windows.scratch(size * elements, band * out_width)
        self.workspace = pool.threads * scratch["thread_scratch"]
        given = {
            **windows.params(image, out),
            **scratch,
            "image_steps": image_steps,
            "steps": steps,
            "wide_width": wide_width,
            "row_tile": band,
            "row_tiles": bands,
            "chunk": chunk,
            "parts": parts,
            "part_columns": columns,
            "epilogue": self._epilogue.params(),
            "target": target,
            "packed": self._packed_weights,
        }
        self.params = self._ffi.new("struct np_bf16_convolution_params *", given)
        return out

    def end_with(self, epilogue: Epilogue) -> None:
        """Let this become of sums, until the next `reshape`."""
        self.params.epilogue = epilogue.params()


class TiledFullyConnectedBf16(TiledConvolutionBf16):
    """Rows of float32 times a constant matrix of bfloat16, plus a bias; see `FullyConnected`.

    Args:
        kernel: bfloat16 [O, C], or [C, O] where `transposed`.
        bias: float32 [O], or None.
        epilogue: what becomes of sums.
        transposed: whether the kernel has its input channels first.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        BackendError: what is not valid.
    """

    def __init__(
        self,
        kernel: Weight,
        bias: Weight | None,
        epilogue: Epilogue,
        *,
        transposed: bool = False,
        session: Session | None = None,
    ) -> None:
        checked_shape(kernel.shape, 2)
        upright = kernel.transpose(1, 0) if transposed else kernel
        outputs, inputs = upright.shape
        image = upright.reshape(outputs, 1, 1, inputs)
        super().__init__(image, bias, Movement(), epilogue, session=session)

    def reshape(self, rows: Any, pool: ThreadPool) -> Any:
        """Take `rows` rows; give the parameters of the product."""
        super().reshape((1, rows, 1, self.channels), pool)
        return self.params
