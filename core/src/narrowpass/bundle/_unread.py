"""The models of a bundle folder that nobody may ever read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import onnx_ir as ir

from narrowpass_ir.garbage import pause_collection


class UnreadModels(Mapping[str, ir.Model]):
    """Models by method, each built when it is first read. Several threads may read.

    Args:
        builders: build them from what was read of their files.
    """

    def __init__(self, builders: Mapping[str, Callable[[], ir.Model]]) -> None:
        self._builders = dict(builders)
        self._built: dict[str, ir.Model] = {}

    def __getitem__(self, name: str) -> ir.Model:
        if name not in self._built:
            with pause_collection():
                model = self._builders[name]()
            self._built.setdefault(name, model)  # of two threads, the first
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._builders)

    def __len__(self) -> int:
        return len(self._builders)
