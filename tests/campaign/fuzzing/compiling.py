"""Changed models that are folded, rewritten and compiled, and run where they take little."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import onnx_ir as ir

import narrowpass
from fuzzing.structure import Change, changed_model
from fuzzing.target import Target
from narrowpass import Plugins, Program, load_plugins
from narrowpass.errors import NarrowpassError
from narrowpass_testing.random_models import RECIPES, random_models

_PIPELINES = (
    "fold",
    "fold",
    "cse,dead-code,fold",
    "fold,fp16",
    "fold,int8-sym{mode=dynamic}",
    "fold,int8-sym{mode=weight-only}",
    "expand-operators,fold",
    "fold,repair-quantized{dynamic=keep}",
    "fold,upgrade-opset,fold",
)
_LARGEST = 10_000
"""Elements of all inputs of a run."""


class Compiled(Target):
    """ONNX files that are loaded, go through passes and are compiled for ``xnn-cpu``.

    The seeds are random models, one of each recipe of the testing kit.
    """

    name = "compiled"
    share = 2
    multiple = 1536

    def seeds(self) -> list[bytes]:
        with contextlib.suppress(ImportError):  # folding asks it where it is there
            import onnxruntime

            onnxruntime.set_default_logger_severity(4)
        return [data for data in self._drawn() if len(data) < 1 << 14]

    def _drawn(self) -> Iterator[bytes]:
        for case in random_models(0, len(RECIPES.keys())):
            yield case.model.SerializeToString()

    def changes(self) -> Change:
        return changed_model

    def grown(self, seeds: Sequence[bytes], size: int) -> Iterator[bytes]:
        return iter(())  # passes may take as long as a model is; `Models` measures the reader

    @cached_property
    def _plugins(self) -> Plugins:
        return load_plugins()

    @cached_property
    def _pipelines(self) -> list[str]:
        known = self._plugins.registry.passes
        texts = [(text, text.replace("{", ",").split(",")) for text in _PIPELINES]
        return [text for text, names in texts if all(n in known or "=" in n for n in names)]

    def read(self, data: bytes) -> None:
        path = self.folder / "m.onnx"
        path.write_bytes(data)
        model = narrowpass.load_model(path)
        pipeline = self._pipelines[sum(data) % len(self._pipelines)]
        bundle = narrowpass.build(model, pipeline, plugins=self._plugins)
        with narrowpass.load(
            bundle, "xnn-cpu", threads=1, cache=False, plugins=self._plugins
        ) as program:
            program.explain()
            feeds = _feeds(program)
            if feeds is not None:
                with contextlib.suppress(NarrowpassError):  # sizes do not fit each other
                    program.run(feeds)


def _feeds(program: Program) -> dict[str, Any] | None:
    """Return ones for all inputs, dimensions without a size being 2; None for large ones."""
    found, left = {}, _LARGEST
    for spec in program.inputs():
        name = (spec.dtype or "").upper()
        if name not in ir.DataType.__members__ or name == "STRING" or spec.shape is None:
            return None
        shape = [size if isinstance(size, int) else 2 for size in spec.shape]
        left -= int(np.prod(shape, dtype=object))
        if left < 0:
            return None
        found[spec.name] = np.ones(shape, ir.DataType[name].numpy())
    return found
