"""A group of nodes with its compiled program, which Python runs first, and C from then on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass_onnxruntime.provider.graph import element_type, memory_of
from narrowpass_onnxruntime.provider.library import check, ffi, lib, one, ort
from narrowpass_planning.program import PlannedProgram

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


@dataclass(frozen=True)
class NativeReplay:
    """A ``struct np_replay``.

    Attributes:
        pointer: to it.
        kept: what it refers to.
    """

    pointer: Any
    kept: list[Any]


def native_replay(
    program: Program, feeds: Mapping[str, Array], outputs: Sequence[str]
) -> NativeReplay | None:
    """Return the run that a program has just done, for C; None where only Python can repeat it.

    Args:
        program: whose method ``main`` has run.
        feeds: by name, in onnxruntime's order.
        outputs: names, likewise.
    """
    if not isinstance(program, PlannedProgram):
        return None
    replay = program.replay(feeds)
    if replay is None:
        return None
    kept: list[Any] = [replay]

    def keep(kind: str, values: Sequence[Any]) -> Any:
        found = ffi.new(f"{kind}[]", max(1, len(values)))
        for index, value in enumerate(values):
            found[index] = value
        kept.append(found)
        return found

    def tensor(shape: Sequence[int], dtype: np.dtype[Any], binds: Sequence[Any]) -> dict[str, Any]:
        return {
            "rank": len(shape),
            "shape": keep("int64_t", shape),
            "size": int(np.prod(shape, dtype=np.int64)) * dtype.itemsize,
            "binds": keep("np_bind", [{"buffer": b, "offset": offset} for b, offset in binds]),
            "bind_count": len(binds),
        }

    fed = {feed.name: feed for feed in replay.feeds}
    computed = {result.name: result for result in replay.results}
    if not all(name in fed for name in feeds) or not all(name in computed for name in outputs):
        return None
    inputs = [
        {
            "type": int(ir.DataType.from_numpy(fed[name].dtype)),
            **tensor(fed[name].shape, fed[name].dtype, fed[name].binds),
        }
        for name in feeds
    ]
    results = []
    for name in outputs:
        result = computed[name]
        entry = tensor(result.shape, result.dtype, result.binds)
        if result.source is not None and result.source.nbytes:
            source = ffi.from_buffer(result.source.reshape(-1).view(np.uint8))
            kept.append(source)
            entry["source"] = ffi.cast("void *", source)
        results.append(entry)
    pointer = ffi.new("np_replay *")
    pointer.feeds, pointer.feed_count = keep("np_feed", inputs), len(inputs)
    pointer.results, pointer.result_count = keep("np_result", results), len(results)
    pointer.buffers = ffi.cast("void **", replay.call.buffers)
    pointer.overread = replay.call.extra_bytes
    pointer.run = ffi.cast("int (*)(void *)", replay.call.run)
    pointer.tape = ffi.cast("void *", replay.call.argument)
    pointer.process = replay.call.process
    kept.append(pointer)
    return NativeReplay(pointer, kept)
