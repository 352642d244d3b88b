"""Products and convolutions of float32 by our own kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import kernels
from narrowpass_xnn_cpu.native.epilogue import Epilogue
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import checked_shape, checked_weights
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.few_rows import FewRows, reads_floats
from narrowpass_xnn_cpu.native.operators.panels import Fields, Layout
from narrowpass_xnn_cpu.native.operators.tiled_windows import Windows, reaches
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.entry import Block
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Weight

_BAND_BYTES = {8: 3 << 16, 16: 1 << 19}
"""Of an image that a thread reads for all columns, by lanes: what stays in the second cache beside
weights and results; that of processors with AVX-512 has a megabyte or more."""
_PIXELS = 24
"""Windows for which a panel of weights is read, at least: two tiles of the highest ones."""
_DEPTH = 768
"""Inputs that are multiplied at a time: a panel's weights for these stay in the second cache."""

_FEW = 6
"""Windows that are one tile of any panel."""


def lanes() -> int:
    """Give the lanes that weights are packed for here: 16 for AVX-512, otherwise 8."""
    if kernels.TARGET != "best":
        return 8
    return max(8, int(extension().lib.np_fp32_lanes()))


class Fp32(tiled.Tiled):
    """A kernel of float32 of ours, which ends with any epilogue."""

    def end_with(self, epilogue: Epilogue) -> None:
        """Let this become of sums, until the next `reshape`."""
        self.params.epilogue = epilogue.params()


class _TiledFp32(Fp32):
    """What products and convolutions share: how they are packed, and the parameters of C."""

    call = "NP_FP32_CONVOLUTION"
    layout = "NP_FP32_LAYOUT"

    def _pack(
        self,
        windows: Windows,
        kernel: Weight,
        bias: Weight | None,
        inputs_first: bool,
        session: Session | None,
    ) -> None:
        """Pack a kernel; the windows are those that it is multiplied with."""
        self._windows = windows
        self.channels, self.outputs = windows.channels, windows.outputs
        checked_weights(kernel, bias, self.outputs, "float32", "float32")
        self._lanes = lanes()
        groups, (runs, run_length) = windows.movement.groups, windows.runs
        outputs = self.outputs // groups
        layout = self._lanes, groups, outputs, runs * run_length
        lib = self._lib
        self._panels = int(lib.np_fp32_panels(self._lanes, outputs))
        self._pack_own(
            session,
            (*layout, inputs_first),
            kernel,
            bias,
            None,
            lib.np_fp32_packed_size(*layout),
            lambda block, k, b, _: lib.np_fp32_pack(*layout, inputs_first, k, b, block),
        )

    def _reshape(
        self,
        image: Sequence[int],
        out: tuple[int, int],
        epilogue: Epilogue,
        pool: ThreadPool,
        rows: int = 0,
    ) -> None:
        """Make the parameters for an image [N, H, W, C] and an output of `out` pixels.

        Where `rows` are given, so many rows of the output are computed at a time, by one thread.
        """
        windows, movement = self._windows, self._windows.movement
        window, (runs, run_length) = windows.size, windows.runs
        batch, _, width, channels = image
        out_height, out_width = out
        steps, reach = tuple(movement.strides), reaches(window, movement)
        copies = any(movement.pads)
        wide_width = (out_width - 1) * steps[1] + reach[1] if copies else width
        # A product goes over all panels with some of the inputs before it goes on to others.
        few = batch * out_height * out_width <= _FEW  # each weight is needed once: as it lies
        depth = runs * run_length if few else _DEPTH
        within = window == (1, 1) and run_length > depth
        row = min(wide_width, out_width * window[1]) * (depth if within else channels)
        room = _BAND_BYTES[self._lanes] // (4 * row)  # rows of the image that are read
        most = (room - window[0]) // min(steps[0], window[0]) + 1
        most = max(most, -(-_PIXELS // out_width))
        band, bands = tiled.even_bands(out_height, most)
        parts = _parts(self._panels, batch * bands, pool.threads)
        if batch * bands * parts < pool.threads:
            # Few columns: rows are divided further, down to a tile each.
            wanted = -(-pool.threads // (batch * parts))
            least = -(-_PIXELS // 2 // out_width)
            band, bands = tiled.even_bands(out_height, max(least, -(-out_height // wanted)))
        # Between two parts a run can be stopped: none is to take long.
        work = band * out_width * self.outputs * runs * run_length
        parts = max(parts, min(self._panels, -(-work // _PART_WORK)))
        if rows:
            band, bands, parts = rows, 1, 1
        needed = (band - 1) * steps[0] + reach[0]
        elements = tiled.checked_elements(needed * wide_width * channels)
        scratch = windows.scratch(4 * elements if copies else 0, band * out_width)
        self.workspace = pool.threads * scratch["thread_scratch"]
        given = {
            **windows.params(image, out),
            **scratch,
            "packed": self._packed_weights,
            "lanes": self._lanes,
            "steps": steps,
            "copies": copies,
            "wide_width": wide_width,
            "depth": depth,
            "panels_within": within,
            "row_tile": band,
            "row_tiles": bands,
            "parts": parts,
            "epilogue": epilogue.params(),
            "target": tiled.target(),
        }
        self.params = self._ffi.new("struct np_fp32_convolution_params *", given)


_PART_WORK = 1 << 29
"""Multiplications of a part, at most, where a panel has no more: some hundredths of a second."""


def _parts(panels: int, tasks: int, threads: int) -> int:
    """Divide panels so that threads have enough to do beside the tasks that there are."""
    if threads == 1 or tasks >= 4 * threads:
        return 1
    return min(panels, -(-4 * threads // tasks))


class TiledConvolution(_TiledFp32):
    """A 2-D convolution over [N, H, W, C]; see `Convolution`.

    Args:
        kernel: float32 [O, KH, KW, C / groups].
        bias: float32 [O], or None.
        movement: of the window.
        epilogue: what becomes of sums; None to clamp them to the limits of `movement`.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        BackendError: what is not valid.
    """

    name = "convolution"

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
        self.epilogue = Epilogue(limits=movement.limits) if epilogue is None else epilogue
        self._pack(Windows.of(kernel.shape, movement), kernel, bias, False, session)

    def reshape(self, shape: Sequence[int], pool: ThreadPool, rows: int = 0) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width.

        Where `rows` are given, the parameters are for so many rows of the output at a time.
        """
        image, out = self._windows.over(shape)
        self._reshape(image, out, self.epilogue, pool, rows)
        return out


class TiledFullyConnected(_TiledFp32):
    """Rows of float32 times a constant matrix, plus a bias; see `FullyConnected`.

    Args:
        kernel: float32 [O, C], or [C, O] where `transposed`.
        bias: float32 [O], or None.
        epilogue: what becomes of sums.
        transposed: whether the kernel has its input channels first.
        session: of the weights cache; None to pack for this operator alone.

    Attributes:
        epilogue: what becomes of sums, unless `end_with` says something else.

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
        super().__init__()
        outputs, inputs = checked_shape(kernel.shape, 2)
        if transposed:
            outputs, inputs = inputs, outputs
        self.epilogue = epilogue
        self._few: FewRows | None = None
        windows = Windows(inputs, outputs, (1, 1), Movement())
        self._pack(windows, kernel, bias, transposed, session)

    def for_few_rows(self, epilogue: Fields) -> FewRows | None:
        """Give the operator for up to `MOST_ROWS` rows of the same matrix, if there is one.

        There is one where all panels are of one width.
        """
        if self._few is None:
            vectors = -(-self.outputs // self._lanes)
            width = vectors // self._panels * self._lanes
            if vectors % self._panels == 0 and reads_floats(width):
                layout = Layout("NP_PANELS_F32", width, 4, 4)
                size = layout.size(self.channels, self.outputs)
                block, owner = Block(self._packed_weights, size), (self._session, self._block)
                sizes = self.channels, self.outputs
                self._few = FewRows(block, owner, layout, *sizes, epilogue)
        return self._few

    def reshape(self, rows: int, pool: ThreadPool) -> Any:
        """Take `rows` rows; give the parameters of the product."""
        checked_shape((rows, max(self.channels, self.outputs)))
        self._reshape((1, rows, 1, self.channels), (rows, 1), self.epilogue, pool)
        return self.params

    def reshape_image(self, shape: Sequence[int], pool: ThreadPool, rows: int) -> tuple[int, int]:
        """Take pixels [N, H, W, C] as their rows, so many at a time; give height and width."""
        batch, height, width, channels = checked_shape(shape, 4)
        if channels != self.channels:
            raise BackendError(f"a product of {self.channels} channels got {channels}")
        out = height, width
        self._reshape((batch, *out, channels), out, self.epilogue, pool, rows)
        return out
