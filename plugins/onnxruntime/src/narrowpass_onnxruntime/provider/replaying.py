"""Runs that C repeats without Python: a program's `Replay` as the structs of ``replay.h``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from narrowpass_onnxruntime.provider.library import ffi
from narrowpass_planning.program import PlannedProgram

if TYPE_CHECKING:
    from narrowpass import Program

Array = np.ndarray[Any, Any]


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
