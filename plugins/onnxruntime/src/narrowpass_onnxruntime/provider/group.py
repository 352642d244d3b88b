"""A group of nodes with its compiled program, and a run of it by Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass_onnxruntime.provider.graph import element_type, memory_of
from narrowpass_onnxruntime.provider.library import check, ffi, lib, one, ort
from narrowpass_onnxruntime.provider.replaying import native_replay

if TYPE_CHECKING:
    from narrowpass import Program

Array = np.ndarray[Any, Any]


@dataclass(eq=False)
class Group:
    """A compiled group.

    Attributes:
        name: of its first node, for messages.
        program: with one method, ``main``.
        computed: names of all values that its nodes compute.
        inputs: names of the values that it is fed, in onnxruntime's order.
        outputs: names of the results, likewise.
        kernel: ``np_kernel *`` that runs it; NULL before there is one, and after.
    """

    name: str
    program: Program
    computed: frozenset[str]
    inputs: Sequence[str] = ()
    outputs: Sequence[str] = ()
    kernel: Any = ffi.NULL
    _signature: object = None
    _kept: list[Any] = field(default_factory=list)

    @property
    def counts(self) -> tuple[int, int]:
        """How often it ran by Python, and how often without."""
        if self.kernel == ffi.NULL:
            return 0, 0
        python, native = ffi.new("uint64_t *"), ffi.new("uint64_t *")
        lib.np_kernel_counts(self.kernel, python, native)
        return int(python[0]), int(native[0])

    def run(self, context: Any) -> None:
        """Compute what the kernel, which is locked, is asked for; let C repeat it where it can.

        Args:
            context: ``OrtKernelContext *``.

        Raises:
            NarrowpassError: the program failed.
            OrtError: onnxruntime refuses memory of a result.
        """
        lib.np_kernel_set_replay(self.kernel, ffi.NULL)
        self._kept = []
        feeds = {name: _feed(context, index) for index, name in enumerate(self.inputs)}
        results = self.program.run(feeds)
        for index, name in enumerate(self.outputs):
            _write(context, index, results[name])
        signature = [(array.dtype, array.shape) for array in feeds.values()]
        if signature == self._signature:
            return  # it was tried: only Python can run it for these
        replay = native_replay(self.program, feeds, self.outputs)
        if replay is None:
            self._signature = signature
            return
        self._signature = None
        self._kept = replay.kept
        lib.np_kernel_set_replay(self.kernel, replay.pointer)


def _feed(context: Any, index: int) -> Array:
    value = one("const OrtValue *", ort().KernelContext_GetInput, context, index)
    dtype, shape = element_type(value)
    if dtype is None:
        raise TypeError("a feed has elements of a type that is not known here")
    array: Array = memory_of(value).view(dtype.numpy()).reshape(shape)
    return array


def _write(context: Any, index: int, array: Array) -> None:
    dims = ffi.new("int64_t[]", [*array.shape, 0])
    value = ffi.new("OrtValue **")
    check(ort().KernelContext_GetOutput(context, index, dims, array.ndim, value))
    if array.nbytes:
        data = one("void *", ort().GetTensorMutableData, value[0])
        raw = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        ffi.memmove(data, ffi.from_buffer(raw), array.nbytes)
