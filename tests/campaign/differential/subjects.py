"""What is tested: each backend, thread count and pipeline."""

from __future__ import annotations

from narrowpass_testing.random_models import Subject

STEADY = "xnn-cpu{deterministic=true}"

_FIRST = Subject("xnn-cpu", "xnn-cpu")

BACKENDS = (
    Subject("reference", "reference"),
    _FIRST,
    Subject("xnn-cpu on 2 threads", "xnn-cpu", threads=2, like=_FIRST),
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
    Subject("deterministic", STEADY, threads=2, rows=True),
    Subject("float16", "xnn-cpu", pipeline="fold,fp16", tolerance=2e-2),
    Subject("bfloat16", "xnn-cpu", pipeline="fold,fp16{dtype=bfloat16}", tolerance=0.1),
    Subject("int8, dynamic", STEADY, 2, DYNAMIC, 0.1, rows=True),
    Subject("int8 weights", STEADY, 2, WEIGHTS, 0.1, rows=True),
    Subject("int8, static", "xnn-cpu", 2, "fold,int8-sym{mode=static}", 0.12, calibrated=True),
    Subject("int4", STEADY, 2, NARROW, 0.4, rows=True),
    Subject("int4, int8 rows", STEADY, 2, NARROW_ROWS, 0.4, rows=True),
    Subject("equalized", "xnn-cpu", pipeline="fold,equalize"),
    Subject("repaired", "xnn-cpu", pipeline="fold,repair-quantized{dynamic=keep}", target=True),
)
"""One of them runs each case. Tolerances are well above what matmuls, convolutions and recurrent
operators err by (0.002 in float16, 0.01 in int8, 0.33 in 4 bits, of the largest
element), and below what a wrong operand does."""

LEVELLED = ("deterministic", "int8, dynamic", "int8 weights", "int4", "int4, int8 rows")
"""Subjects whose results have the same bits at each level of instruction sets from AVX2 on."""

SUBJECTS = {subject.name: subject for subject in (*BACKENDS, *PIPELINES)}


def available() -> tuple[list[Subject], list[Subject]]:
    """Return the subjects whose backends and passes are installed: all cases', and one of each."""
    found, chosen = ([s for s in those if s.is_installed()] for those in (BACKENDS, PIPELINES))
    return found, chosen
