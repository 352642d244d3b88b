"""Compares 4-bit and int8 weights of a model with float32: bytes, time, and error.

    python benchmarks/int4_models.py MODEL.onnx... [--threads 1] [--rounds 5]
        [--json OUT.json]

Forms: float32; int8 weights with float rows (``int8-sym{mode=weight-only}``) and with rows in int8
(``mode=dynamic``); weights of 4 bits in blocks of 32 with float rows, with rows in int8, and in
blocks of 64 with zero points; onnxruntime in float32 and with its MatMulNBits. Each has a process
of its own, and the processes take turns. Shown are the bytes of the files, the median time of a
run, the ratio to float32's (above 1, the form is faster), and the least cosine and the largest
error over the largest magnitude against onnxruntime in float32, over three random inputs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from gallery import Model
from gallery.feeds import feeds_of
from rich.console import Console
from rich.table import Table
from runners import Entrant, cores, in_turns, installed, judge

import narrowpass

SEEDS = (0, 1, 2)
SECONDS = 0.5
FORMS = {
    "float32": "fold",
    "int8 weights": "fold,int8-sym{mode=weight-only}",
    "int8 dynamic": "fold,int8-sym{mode=dynamic}",
    "4 bits": "fold,int4{block=32}",
    "4 bits dynamic": "fold,int4{block=32,activations=dynamic}",
    "4 bits asymmetric": "fold,int4{block=64,symmetric=false}",
}
REFERENCE = "onnxruntime float32"
NBITS = "onnxruntime 4 bits"


def nbits(path: Path, target: Path) -> None:
    """Write a model with onnxruntime's MatMulNBits in blocks of 32, rows in int8."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(
        onnx.load(path), bits=4, block_size=32, is_symmetric=True, accuracy_level=4
    )
    quantizer.process()
    quantizer.model.save_model_to_file(str(target))


def stored(path: Path) -> int:
    """Return the bytes of a file or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def measure(path: Path, folder: Path, threads: int, rounds: int) -> dict[str, Any]:
    """Build all forms of a model and time them in turns; return a row for each."""
    model = Model(path.stem, "given", lambda folder: path)
    feeds = [feeds_of(path, model, seed) for seed in SEEDS]
    entrants, sizes = [], {}
    for name, pipeline in FORMS.items():
        target = folder / f"{path.stem}-{name.replace(' ', '-')}.narrow"
        narrowpass.build(str(path), pipeline, out=str(target), target="xnn-cpu")
        entrants.append(Entrant(name, "narrowpass", str(target)))
        sizes[name] = stored(target)
    if "onnxruntime" in installed():
        narrow = folder / f"{path.stem}-nbits.onnx"
        nbits(path, narrow)
        entrants.append(Entrant(REFERENCE, "onnxruntime", str(path)))
        entrants.append(Entrant(NBITS, "onnxruntime", str(narrow)))
        sizes |= {REFERENCE: stored(path), NBITS: stored(narrow)}
    timings = in_turns(entrants, feeds, threads, rounds, SECONDS)
    right = timings.get(REFERENCE)
    return {name: judge(timing, right) | {"bytes": sizes[name]} for name, timing in timings.items()}


def show(name: str, rows: dict[str, Any]) -> None:
    """Print the table of a model."""
    table = Table("form", "MB", "ms", "float32 over it", "cosine", "largest error", title=name)
    base = rows["float32"]["latency"]
    for form, row in rows.items():
        if "failure" in row:
            table.add_row(form, row["failure"])
            continue
        table.add_row(
            form,
            f"{row['bytes'] / 1e6:.1f}",
            f"{row['latency'] * 1e3:.2f}",
            f"{base / row['latency']:.2f}",
            f"{row.get('cosine', np.nan):.5f}",
            f"{row.get('relative', np.nan):.4f}",
        )
    Console(width=120).print(table)


def main() -> None:
    """Read the command line, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("models", type=Path, nargs="+", metavar="MODEL.onnx")
    parser.add_argument("--threads", default="1", help="a number, or all")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, metavar="OUT.json")
    given = parser.parse_args()
    found = {}
    with tempfile.TemporaryDirectory(prefix="narrowpass-int4-") as folder:
        for path in given.models:
            found[path.stem] = measure(path, Path(folder), cores(given.threads), given.rounds)
            show(path.stem, found[path.stem])
    if given.json:
        given.json.write_text(json.dumps(found, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
