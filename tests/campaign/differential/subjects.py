"""What is tested: each backend, thread count and pipeline."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import onnx_ir as ir

import narrowpass
from differential.cases import Case
from differential.elements import Array
from narrowpass import Bundle, CompileOptions, Program
from narrowpass.framework.plugins import load_plugins


@dataclass(frozen=True)
class Finding:
    """What is wrong with one subject on one case.

    Attributes:
        kind: a word for the class: it is what shrinking keeps.
        subject: the name of what is tested.
        message: the details.
    """

    kind: str
    subject: str
    message: str


@dataclass(frozen=True)
class Subject:
    """A way to run a model.

    Attributes:
        name: as findings name it.
        backend: a backend's name.
        threads: of the program.
        pipeline: passes before; None for none.
        tolerance: relative to the largest element; None for that of the type. Narrow types have
            one that separates a wrong operand from rounding, and nothing more.
        like: the name of the subject whose bits it must have.
        calibrated: whether passes have the feeds of the case as samples.
        rows: whether a row alone has the same bits, where rows do not depend on each other.
        levels: whether results have the same bits at each level of instruction sets from AVX2 on,
            of the operators that `differential.bits.LEVELLED` has.
        target: whether passes are asked for the limits of the backend.
    """

    name: str
    backend: str
    threads: int = 1
    pipeline: str | None = None
    tolerance: float | None = None
    like: str = ""
    calibrated: bool = False
    rows: bool = False
    levels: bool = False
    target: bool = False

    def is_installed(self) -> bool:
        """Report whether the backend and the passes are there."""
        registry = plugins().registry
        texts = re.sub(r"{.*?}", "", self.pipeline or "").split(",")
        passes = [text for text in texts if text]
        return self.backend.partition("{")[0] in registry.backends and all(
            name in registry.passes for name in passes
        )

    def program(self, case: Case) -> Program:
        """Compile a case."""
        model = ir.from_proto(case.model)
        if self.pipeline is None:
            backend = plugins().registry.backend(self.backend)
            options = CompileOptions(threads=self.threads, cache=False)
            return backend.compile(Bundle({"main": model}), options)
        bundle = narrowpass.build(
            model,
            self.pipeline,
            plugins=plugins(),
            calibration=[copies(case.feeds)] if self.calibrated else None,
            target=self.backend if self.target else None,
        )
        return narrowpass.load(
            bundle, self.backend, threads=self.threads, cache=False, plugins=plugins()
        )


@cache
def plugins() -> Any:
    """Return what is installed, found once."""
    return load_plugins()


FIRST = "xnn-cpu"
STEADY = "xnn-cpu{deterministic=true}"

BACKENDS = (
    Subject("reference", "reference"),
    Subject(FIRST, "xnn-cpu"),
    Subject("xnn-cpu on 2 threads", "xnn-cpu", threads=2, like=FIRST),
    Subject("onnxruntime", "onnxruntime"),
)
"""Each runs every case."""

DYNAMIC, WEIGHTS = "fold,int8-sym{mode=dynamic}", "fold,int8-sym{mode=weight-only}"
# Without `green` weights of so few elements would stay wide.
NARROW = "fold,int4{green=[*],head=int4,block=16}"
NARROW_ROWS = "fold,int4{green=[*],head=int4,activations=dynamic}"

PIPELINES = (
    Subject("fold", "xnn-cpu", pipeline="fold"),
    Subject("fold, upgraded", "xnn-cpu", pipeline="fold,upgrade-opset,fold"),
    Subject("fold on reference", "reference", pipeline="fold"),
    Subject("expanded", "xnn-cpu", pipeline="expand-operators,store-weights", tolerance=2e-2),
    Subject("deterministic", STEADY, threads=2, rows=True, levels=True),
    Subject("float16", "xnn-cpu", pipeline="fold,fp16", tolerance=2e-2),
    Subject("bfloat16", "xnn-cpu", pipeline="fold,fp16{dtype=bfloat16}", tolerance=0.1),
    Subject("int8, dynamic", STEADY, 2, DYNAMIC, 0.1, rows=True, levels=True),
    Subject("int8 weights", STEADY, 2, WEIGHTS, 0.1, rows=True, levels=True),
    Subject("int8, static", "xnn-cpu", 2, "fold,int8-sym{mode=static}", 0.12, calibrated=True),
    Subject("int4", STEADY, 2, NARROW, 0.4, rows=True, levels=True),
    Subject("int4, int8 rows", STEADY, 2, NARROW_ROWS, 0.4, rows=True, levels=True),
    Subject("equalized", "xnn-cpu", pipeline="fold,equalize"),
    Subject("repaired", "xnn-cpu", pipeline="fold,repair-quantized{dynamic=keep}", target=True),
)
"""One of them runs each case. Tolerances are well above what matmuls, convolutions and recurrent
operators err by (0.002 in float16, 0.01 in int8, 0.33 in 4 bits, of the largest
element), and below what a wrong operand does."""

SUBJECTS = {subject.name: subject for subject in (*BACKENDS, *PIPELINES)}


def available() -> tuple[list[Subject], list[Subject]]:
    """Return the subjects whose backends and passes are installed: all cases', and one of each."""
    found, chosen = ([s for s in those if s.is_installed()] for those in (BACKENDS, PIPELINES))
    return found, chosen


def copies(feeds: Mapping[str, Array]) -> dict[str, Array]:
    """Return feeds that a program may write to."""
    return {name: array.copy() for name, array in feeds.items()}
