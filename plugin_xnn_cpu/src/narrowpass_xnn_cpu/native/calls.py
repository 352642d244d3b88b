"""The calls of a tape, as ``csrc/kernels.def`` lists them, and the constants of our kernels.

Both are read from the extension: there is no second list of them in Python.
"""

from __future__ import annotations

import functools
import re
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
        name: of ``enum np_call``.
        params: the struct of its parameters; empty for an operator of XNNPACK.
        file: what defines the struct, below ``csrc``; empty for an operator of XNNPACK.
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
    """Allocate the parameters of a call, and fill in the fields, in order or by name.

    Raises:
        BackendError: no such call, or one without parameters.
    """
    row = table().get(call)
    if row is None or not row.params:
        raise BackendError(f"{call!r} is not a kernel with parameters")
    return extension().ffi.new(f"struct {row.params} *", fields)


def check(call: str, params: Any) -> int:
    """Return the number of a call whose parameters are `params`; None for none.

    Raises:
        BackendError: no such call, or parameters of another one.
    """
    row = table().get(call)
    if row is None:
        raise BackendError(f"a tape has no call {call!r}")
    given = "" if params is None else extension().ffi.typeof(params).cname
    if given != (f"struct {row.params} *" if row.params else ""):
        raise BackendError(f"{call} takes parameters of {row.params or 'no'!r}, not {given!r}")
    return int(getattr(extension().lib, call))


def constant(prefix: str, name: str) -> int:
    """Return the constant of C that `name` stands for: ``NP_MATH_HARD_SIGMOID`` for "hard sigmoid".

    Args:
        prefix: of the constant, such as ``NP_MATH``.
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
    """Return the names of `constant` that a prefix has, with spaces between their words."""
    found = (name for name in dir(extension().lib) if name.startswith(f"{prefix}_"))
    return [name.removeprefix(f"{prefix}_").lower().replace("_", " ") for name in found]
