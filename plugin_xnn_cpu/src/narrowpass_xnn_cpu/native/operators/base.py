"""What all operators share: their life, and checks of what goes to C.

Every constructor and `reshape` checks what XNNPACK would assert or take silently. Sizes are in
elements, and inputs and outputs are dense: [N, H, W, C] for images, rows of channels otherwise.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from typing import Any

from narrowpass.errors import BackendError
from narrowpass.framework.arguments import Uncopied
from narrowpass_xnn_cpu.native.library import check, extension
from narrowpass_xnn_cpu.weights.cache import WeightsCache
from narrowpass_xnn_cpu.weights.entry import Block
from narrowpass_xnn_cpu.weights.session import Create, Session
from narrowpass_xnn_cpu.weights.weight import Weight

Shape = tuple[int, ...]
Range = tuple[float, float]
"""Bounds that an output is clamped to; infinite for none."""

UNBOUNDED: Range = (-math.inf, math.inf)
MAX_DIMS = 6
_MOST_ELEMENTS = 1 << 46


class Operator(Uncopied):
    """An operator of XNNPACK.

    Attributes:
        call: which setup a tape uses; a name of ``enum np_call``.
        handle: XNNPACK's handle.
        workspace: bytes of scratch memory that a run needs, after `reshape`.
        params: of a kernel of ours, after `reshape`; None for one of XNNPACK.
        block: its packed weights, where they are in a session of the weights cache.
        maker: of the kernel, as it stands before the kernel's name.
    """

    call: str
    maker = "xnn "

    _instead = "programs that are compiled again share it"

    def __init__(self) -> None:
        self.workspace = 0
        self.params: Any = None
        self.handle: Any = None
        self.block: Block | None = None
        self._session: Session | None = None
        self._ffi = extension().ffi
        self._lib = extension().lib
        # Workers come back at once: the next kernel may be one of ours.
        self._flags: int = self._lib.XNN_FLAG_DONT_SPIN_WORKERS

    def _kind(self) -> str:
        return self.call.removeprefix("NP_").lower().replace("_", " ")

    def _created(self, status: int, handle: Any) -> None:
        check(status, f"XNNPACK does not create this {self._kind()}")
        self._own(handle[0])

    def _packed(
        self,
        session: Session | None,
        parameters: object,
        kernel: Weight,
        bias: Weight | None,
        create: Create,
        others: Sequence[Weight] = (),
    ) -> None:
        """Create the operator with weights: in a session of the weights cache, if there is one.

        Without one, a cache of its own holds them: kernels that read packed weights where they lie,
        such as those for few rows, run in either case, and results are the same.
        """
        if session is None:
            with WeightsCache().begin() as own:
                self._packed(own, parameters, kernel, bias, create, others)
            return
        self._session = session  # what it packed must live as long as the operator
        self._own(session.pack(self._kind(), parameters, kernel, bias, create, others))
        self.block = session.last_block()

    def _own(self, handle: Any) -> None:
        self.handle = handle
        weakref.finalize(self, self._lib.xnn_delete_operator, handle).atexit = False

    def _reshaped(self, status: int, shapes: object) -> None:
        check(status, f"XNNPACK does not take {shapes} for this {self._kind()}")


def checked_shape(shape: Sequence[int], rank: int | None = None) -> Shape:
    """Check a shape that goes to C: its rank, its signs, and that sizes do not overflow."""
    dims = tuple(int(dim) for dim in shape)
    if rank is not None and len(dims) != rank:
        raise BackendError(f"a shape of rank {rank} is needed here, not {list(dims)}")
    if len(dims) > MAX_DIMS:
        raise BackendError(f"XNNPACK takes {MAX_DIMS} dimensions at most, not {list(dims)}")
    if any(dim < 1 for dim in dims) or math.prod(dims) > _MOST_ELEMENTS:
        raise BackendError(f"a tensor of shape {list(dims)} cannot be computed with")
    return dims


def checked_range(limits: Range) -> Range:
    """Check bounds that an output is clamped to."""
    low, high = limits
    if math.isnan(low) or math.isnan(high) or low > high:
        raise BackendError(f"outputs cannot be clamped to [{low}, {high}]")
    return low, high


def checked_pixels(limits: Sequence[int], least: int, what: str) -> None:
    """Check that sizes are at least `least`, and fit into 31 bits."""
    if any(not least <= int(item) < 1 << 31 for item in limits):
        raise BackendError(f"{what} {list(limits)} is out of range")


def checked_weights(
    kernel: Weight, bias: Weight | None, outputs: int, dtype: str, bias_dtype: str
) -> None:
    """Check what XNNPACK reads unchecked: types, and the length of the bias."""
    if kernel.dtype.name != dtype:
        raise BackendError(f"a kernel must be {dtype}, not {kernel.dtype}{list(kernel.shape)}")
    if bias is not None and (bias.dtype.name != bias_dtype or bias.shape != (outputs,)):
        raise BackendError(
            f"a bias must be {bias_dtype}[{outputs}], not {bias.dtype}{list(bias.shape)}"
        )


def check_window(
    shape: Shape, window: Sequence[int], pads: Sequence[int], dilations: Sequence[int]
) -> None:
    """Check that a window is not larger than its padded input of [N, H, W, C]."""
    for axis in (0, 1):
        reach = (window[axis] - 1) * dilations[axis] + 1
        if reach > shape[1 + axis] + pads[axis] + pads[2 + axis]:
            raise BackendError(
                f"a window of {reach} is larger than the padded input of {list(shape)}"
            )
