"""Imports onnx_ir without sympy, which it needs for arithmetic on symbolic dimensions only.

sympy is most of what a process imports to run a model: 32 MB that it shares with no other, and a
quarter of a second. It is imported at the first such arithmetic.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

_LIBRARY, _DEFERRED = "onnx_ir", "sympy"


class _Deferred(ModuleType):
    """Stands for a module in the namespace of those that import it now.

    Attributes that are read before `ready` are functions, which import the module when they are
    called: onnx_ir puts some into a table when it is imported. Later ones are the module's own.
    """

    ready = False

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        if not self.ready:
            return functools.partial(_call, self.__name__, name)
        value = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, value)
        return value


def _call(module: str, name: str, *arguments: Any) -> Any:
    return getattr(importlib.import_module(module), name)(*arguments)


def import_light() -> None:
    """Import onnx_ir, and leave sympy for later.

    Nothing is done where one of them is imported already. A version of onnx_ir that needs sympy
    at once gets it. No other thread should import sympy at the same time.

    Raises:
        ImportError: onnx_ir cannot be imported.
    """
    if _LIBRARY in sys.modules or _DEFERRED in sys.modules:
        return
    stand_in = sys.modules[_DEFERRED] = _Deferred(_DEFERRED)
    try:
        importlib.import_module(_LIBRARY)
    except Exception:  # noqa: BLE001  # what a stand-in causes may be anything
        for name in [name for name in sys.modules if name.split(".")[0] == _LIBRARY]:
            del sys.modules[name]
    finally:
        stand_in.ready = True
        if sys.modules.get(_DEFERRED) is stand_in:
            del sys.modules[_DEFERRED]
    importlib.import_module(_LIBRARY)
