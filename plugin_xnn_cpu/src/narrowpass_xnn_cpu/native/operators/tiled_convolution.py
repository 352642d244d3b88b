"""Convolutions of int8 by our own kernels."""

from __future__ import annotations

from collections.abc import Sequence

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.operators import tiled
from narrowpass_xnn_cpu.native.operators.base import checked_shape
from narrowpass_xnn_cpu.native.operators.convolution import Movement
from narrowpass_xnn_cpu.native.operators.int8 import Requantized
from narrowpass_xnn_cpu.native.operators.int8_tensors import SumS8
from narrowpass_xnn_cpu.native.operators.tiled_windows import TiledWindowsS8, reaches
from narrowpass_xnn_cpu.native.pool import ThreadPool
from narrowpass_xnn_cpu.weights.session import Session
from narrowpass_xnn_cpu.weights.weight import Quantized, Weight


class TiledConvolutionS8(TiledWindowsS8):
    """A 2-D convolution over [N, H, W, C] of int8; see `ConvolutionS8`.

    Args:
        kernel: int8 [O, KH, KW, C / groups], scales of axis 0.
        bias: int32 [O], or None.
        movement: of the window; its limits are not used.
        requantized: of input and output.
        session: of the weights cache; None to pack for this operator alone.

    Raises:
        UnfitError: constants that cannot be computed with exactly.
        BackendError: what is not valid otherwise.
    """

    call = "NP_INT8_CONVOLUTION"

    def __init__(
        self,
        kernel: Quantized,
        bias: Weight | None,
        movement: Movement,
        requantized: Requantized,
        *,
        session: Session | None = None,
    ) -> None:
        super().__init__(movement, requantized)
        outputs, height, width, per_group = checked_shape(kernel.integers.shape, 4)
        groups = movement.groups
        if groups < 1 or outputs % groups:
            raise BackendError(f"{outputs} output channels cannot form {groups} groups")
        self.channels, self.outputs = per_group * groups, outputs
        self._window, self._layout = (height, width), tiled.layout()
        self._sum: SumS8 | None = None
        self.can_be_raised = self._layout is tiled.QUADS
        # A row of the window lies dense where its pixels are whole, and side by side.
        if groups == 1 and (movement.dilations[1] == 1 or width == 1):
            self._runs = height, width * per_group
        else:
            self._runs = height * width, per_group
        sizes = groups, outputs // groups, *self._runs
        packed_size, pack = tiled.packers(self._layout)
        terms = height * width * per_group
        self._pack_windows(
            session,
            (self._layout.name, *sizes),
            kernel,
            bias,
            terms,
            0,
            packed_size(*sizes),
            lambda block, k, b, s: pack(*sizes, k, b, s, block),
        )

    @property
    def takes_sum(self) -> bool:
        """Tell whether `take_sum` can be called."""
        return self._layout is tiled.QUADS and self._sum is None

    def take_sum(self, added: SumS8) -> None:
        """Add a second input, of the output's shape, to the output."""
        self._sum = added

    def reshape(self, shape: Sequence[int], pool: ThreadPool) -> tuple[int, int]:
        """Take an input of `shape` [N, H, W, C]; give the output's height and width."""
        (batch, height, width, channels), out = self._image(shape, self._window)
        movement, layout = self._movement, self._layout
        steps, picks = tuple(movement.strides), (1, 1)
        out_height, out_width = out
        # Windows that lie in an image that is raised already are read there, in whole groups.
        in_place = self.in_raised and not any(movement.pads) and self._runs[1] % layout.group == 0
        if self._window == (1, 1):
            if steps == (1, 1) and not any(movement.pads):
                # All pixels are one row after the other.
                height = out_height = batch * height * width
                batch = width = out_width = 1
            elif not in_place:
                steps, picks = (1, 1), steps  # only pixels that are needed are widened
        reach = reaches(self._window, movement)
        wide_width = width if in_place else (out_width - 1) * steps[1] + reach[1]
        # What comes of a band stays in the cache too, since panels write it by pieces.
        row_bytes = layout.element * wide_width * channels + out_width * self.outputs // steps[0]
        most = (layout.band_bytes // row_bytes - reach[0]) // steps[0] + 1
        # A panel of weights is read for a few tiles at least.
        most = max(most, -(-4 * layout.rows // out_width))
        whole = layout.rows if out_width == 1 else 1
        groups = movement.groups
        panels = -(-(self.outputs // groups) // layout.columns)
        band, bands, part, parts = tiled.divide(
            out_height, most, whole, batch, panels, pool.threads
        )
        columns = part * layout.columns
        rows = (band - 1) * steps[0] + reach[0]
        # The last run may be read to its last group's end.
        elements = tiled.checked_elements(rows * wide_width * channels + layout.group - 1)
        pixels = 0 if in_place else tiled.line(layout.element * elements)
        runs = pixels + tiled.line(4 * band * out_width)
        scratch = runs + tiled.line(4 * self._runs[0])
        self.workspace = pool.threads * scratch
        given = {
            "batch": batch,
            "height": height,
            "width": width,
            "channels": channels,
            "out_height": out_height,
            "out_width": out_width,
            "outputs": self.outputs,
            "groups": groups,
            "window": self._window,
            "steps": steps,
            "picks": picks,
            "dilations": tuple(movement.dilations),
            "pads": tuple(movement.pads[:2]),
            "wide_width": wide_width,
            "runs": self._runs[0],
            "run_length": self._runs[1],
            "band": band,
            "bands": bands,
            "parts": parts,
            "part_columns": columns,
            "pixels_offset": pixels,
            "runs_offset": runs,
            "thread_scratch": scratch,
            "quads": layout is tiled.QUADS,
            "in_raised": self.in_raised,
            "out_raised": self.out_raised,
            "other_raised": self.other_raised,
            "in_place": in_place,
            **self._requantization(),
        }
        if self._sum is not None:
            s = self._sum
            given |= {"adds": 1, "sum": (s.own, s.other, s.bias, s.shift, s.zero, *s.limits)}
        self.params = self._ffi.new("struct np_int8_convolution_params *", given)
        return out
