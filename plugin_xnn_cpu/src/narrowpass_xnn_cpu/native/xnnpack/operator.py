"""XNNPACK's operators: created once, reshaped when sizes change, freed with the object.

Every constructor and `reshape` checks arguments that XNNPACK only asserts, or ignores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from narrowpass_planning.weights.entry import Block
from narrowpass_planning.weights.weight import Weight
from narrowpass_xnn_cpu.native.library import check, check_created
from narrowpass_xnn_cpu.native.operator import Operator
from narrowpass_xnn_cpu.native.problems.quantization import Quantization
from narrowpass_xnn_cpu.native.weights_cache import Create, Session, WeightsCache


class XnnOperator(Operator):
    """An operator of XNNPACK.

    Attributes:
        kind: its name in errors, and in the names of its packed weights.
        block: its packed weights, where they are in a session of the weights cache.
    """

    prefix = "xnn "
    kind: str

    def __init__(self) -> None:
        super().__init__()
        self.block: Block | None = None
        # Workers return to our thread pool at once: the next kernel may be one of ours.
        self._flags: int = self._lib.XNN_FLAG_DONT_SPIN_WORKERS

    def _create(self, function: str, *arguments: Any, flags: int = 0) -> None:
        """Call ``xnn_create_*`` with flags and the handle as last arguments."""
        handle = self._ffi.new("xnn_operator_t *")
        status = getattr(self._lib, function)(*arguments, flags | self._flags, handle)
        check_created(status, handle, f"XNNPACK does not create this {self.kind}")
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
        """Create an operator with packed weights, in a session of the weights cache if any.

        Without one, they are in a cache of this operator's own, since the GEMV kernels read packed
        weights from the cache: results are the same with and without a session.
        """
        if session is None:
            with WeightsCache().begin() as own:
                self._packed(own, parameters, kernel, bias, create, others)
            return
        self._session = session  # keeps its packed weights as long as the operator
        self._own(session.pack(self.kind, parameters, kernel, bias, create, others))
        self.block = session.last_block()

    def _own(self, handle: Any) -> None:
        # A program has hundreds. Their end runs no Python, where a signal would be handled, and
        # what its handler raises is dropped in a finalizer: Ctrl-C would be lost.
        self.handle = self._ffi.gc(handle, self._lib.xnn_delete_operator)

    def _reshape(self, function: str, shapes: object, *arguments: Any) -> None:
        """Call ``xnn_reshape_*`` on the handle; errors name `shapes`."""
        status = getattr(self._lib, function)(self.handle, *arguments)
        check(status, f"XNNPACK does not accept {shapes} for this {self.kind}")

    def _params_of(self, item: Quantization | None) -> Any:
        """Return XNNPACK's quantization parameters; NULL for float32."""
        if item is None:
            return self._ffi.NULL
        return self._ffi.new("struct xnn_quantization_params *", (item.zero_point, item.scale))
