"""The calls of a tape, listed in ``csrc/kernels.def``, and the constants of our kernels.

Both are read from the C extension, so that Python has no second list of them.
"""

from __future__ import annotations

import functools
import re
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native.library import extension


@dataclass(frozen=True)
class Call:
    """A row of ``kernels.def``.

    Attributes:
        name: name in ``enum np_call``.
        params: struct of the parameters; empty for an operator of XNNPACK.
        file: header below ``csrc`` that defines the struct; empty for an operator of XNNPACK.
        summary: what it computes.
    """

    name: str
    params: str
    file: str
    summary: str


@functools.cache
def table() -> Mapping[str, Call]:
    """Return the calls by name, in their order."""
    ffi, lib = extension().ffi, extension().lib
    calls: dict[str, Call] = {}
    for number in range(lib.np_call_count):
        row = lib.np_call_rows[number]
        texts = (row.call, row.params, row.file, row.summary)
        call = Call(*(ffi.string(text).decode() for text in texts))
        calls[call.name] = call
    return MappingProxyType(calls)


def parameters(call: str, fields: Sequence[Any] | Mapping[str, Any] = ()) -> Any:
    """Allocate the parameters of a call, with fields in order or by name.

    Raises:
        BackendError: an unknown call, or one of XNNPACK, which has no parameters.
    """
    row = table().get(call)
    if row is None or not row.params:
        raise BackendError(f"{call!r} is not a kernel with parameters")
    return extension().ffi.new(f"struct {row.params} *", fields)


_OWNED: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


def owning(params: Any, memory: Any) -> Any:
    """Return parameters that keep memory alive which they point to.

    Several bindings of a partition have parameters of their own for one operator.
    """
    _OWNED[params] = memory
    return params


def check(call: str, params: Any) -> int:
    """Return the number of a call in ``enum np_call``, after a check of its parameters' type.

    Raises:
        BackendError: an unknown call, or parameters of another call.
    """
    row = table().get(call)
    if row is None:
        raise BackendError(f"a tape has no call {call!r}")
    given = "" if params is None else extension().ffi.typeof(params).cname
    if given != (f"struct {row.params} *" if row.params else ""):
        raise BackendError(f"{call} takes parameters of {row.params or 'no'!r}, not {given!r}")
    return int(getattr(extension().lib, call))


def constant(prefix: str, name: str) -> int:
    """Return the C constant of a name: ``NP_FUNCTION_HARD_SIGMOID`` for "hard sigmoid".

    Args:
        prefix: of the constant, such as ``NP_FUNCTION``.
        name: in lower case, its words separated by spaces or hyphens.

    Raises:
        BackendError: there is no such constant.
    """
    whole = f"{prefix}_{re.sub('[ -]', '_', name).upper()}"
    value = getattr(extension().lib, whole, None)
    if value is None:
        raise BackendError(f"{name!r} is none of {', '.join(names(prefix))} ({prefix})")
    return int(value)


def names(prefix: str) -> list[str]:
    """Return all names that `constant` accepts for a prefix."""
    found = (name for name in dir(extension().lib) if name.startswith(f"{prefix}_"))
    return [name.removeprefix(f"{prefix}_").lower().replace("_", " ") for name in found]
