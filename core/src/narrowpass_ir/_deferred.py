"""Lets onnx_ir import sympy at the first arithmetic on symbolic dimensions.

sympy is most of what a process imports to run a model: 32 MB that it shares with no other, and a
quarter of a second.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

_LIBRARY = "onnx_ir"
_IMPORTERS = ("onnx_ir._core", "onnx_ir._symbolic_shapes")
_DEFERRED = "sympy"


class _Deferred(ModuleType):
    """Stands for a module in the namespace of one that imports it.

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


class _Loader(SourceFileLoader):
    """Loads a module whose statement ``import sympy`` binds a stand-in.

    The module has an ``__import__`` of its own for that. `sys.modules` never holds the stand-in,
    so that other threads, and other libraries, get sympy itself.
    """

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module; with sympy itself where the stand-in is not enough."""
        stand_in = _Deferred(_DEFERRED)

        def import_(name: str, *scope: Any, **options: Any) -> Any:
            plain = not any(scope[2:]) and not options
            return (
                stand_in
                if plain and name == _DEFERRED
                else builtins.__import__(name, *scope, **options)
            )

        module.__dict__["__builtins__"] = {**vars(builtins), "__import__": import_}
        try:
            super().exec_module(module)
        except Exception:  # noqa: BLE001  # what a stand-in causes may be anything
            module.__dict__["__builtins__"] = vars(builtins)
            super().exec_module(module)
        finally:
            stand_in.ready = True


class _Finder:
    """Finds the modules of onnx_ir that import sympy."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where the module is, with the loader above if it is a file of Python source."""
        if name not in _IMPORTERS or _DEFERRED in sys.modules:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None
        spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


def install() -> None:
    """Defer sympy in imports of onnx_ir from now on.

    Nothing is done where onnx_ir is imported already.
    """
    if _LIBRARY not in sys.modules and not any(isinstance(f, _Finder) for f in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
