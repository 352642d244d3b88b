"""Which subjects of the campaign run, by what is installed."""

from __future__ import annotations

from importlib.util import find_spec

from differential.subjects import available

FOLDING, INT8, INT4 = "narrowpass_constant_folding", "narrowpass_int8_sym", "narrowpass_int4"
PACKAGES = {
    "reference": (),
    "xnn-cpu": (),
    "xnn-cpu on 2 threads": (),
    "deterministic": (),
    "onnxruntime": ("narrowpass_onnxruntime",),
    "fold": (FOLDING,),
    "fold, upgraded": (FOLDING,),
    "fold on reference": (FOLDING,),
    "expanded": (FOLDING,),
    "float16": (FOLDING, "narrowpass_fp16"),
    "bfloat16": (FOLDING, "narrowpass_fp16"),
    "int8, dynamic": (FOLDING, INT8),
    "int8 weights": (FOLDING, INT8),
    "int8, static": (FOLDING, INT8),
    "equalized": (FOLDING, INT8),
    "repaired": (FOLDING, INT8),
    "int4": (FOLDING, INT4),
    "int4, int8 rows": (FOLDING, INT4),
}
"""The packages that a subject needs beside the reference and the native backend."""


def expected_subjects() -> set[str]:
    """Return the names of the subjects whose packages can be imported."""
    return {name for name, needed in PACKAGES.items() if all(map(find_spec, needed))}


def check_runs(counts: dict[str, int]) -> None:
    """Assert that all subjects ran that can, and that these are the ones that are chosen from."""
    always, turns = available()
    assert {subject.name for subject in (*always, *turns)} == expected_subjects()
    idle = [name for name in expected_subjects() if not counts.get(f"runs of {name}")]
    assert idle == []
