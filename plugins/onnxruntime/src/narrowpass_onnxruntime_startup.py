"""Puts the provider in front of onnxruntime's own when a program imports onnxruntime.

A `.pth` file imports this module when the interpreter starts, so it imports what it needs when
onnxruntime is imported, and no sooner.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

VARIABLE = "NARROWPASS_ONNXRUNTIME"
_TARGET = "onnxruntime"


class _Loader(importlib.abc.Loader):
    """Executes a module as its own loader does, and then changes its sessions."""

    def __init__(self, inner: importlib.abc.Loader) -> None:
        self._inner = inner

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._inner.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._inner.exec_module(module)
        if module.__spec__ is not None:
            module.__spec__.loader = self._inner
        module.__loader__ = self._inner
        from narrowpass_onnxruntime.provider.defaults import prefer

        prefer(os.environ.get(VARIABLE, ""))


class _Finder(importlib.abc.MetaPathFinder):
    """Finds onnxruntime as the others do, once."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != _TARGET:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


def install() -> None:
    """Watch for the import of onnxruntime, unless the environment says no, or it is imported."""
    if os.environ.get(VARIABLE) != "0" and _TARGET not in sys.modules:
        sys.meta_path.insert(0, _Finder())


install()
