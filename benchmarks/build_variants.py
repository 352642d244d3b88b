"""Builds the forms of models that ``fast_path.py`` compares: float32, bfloat16 and int8.

    python benchmarks/build_variants.py FOLDER [--model resnet50 ...]
        [--variant "openvino nncf" ...]
        [--samples 16] [--sequence 128]

Exports the models, fixes their dimensions (one image, or one sequence), writes random samples to
calibrate with, and passes both to each tool in a process of its own: narrowpass as
``narrowpass build MODEL.onnx -p "fold,int8-sym{mode=static}" --calibration SAMPLES`` (also
``mode=dynamic``, ``fp16{dtype=bfloat16}`` and plain ``fold``); onnxruntime's ``quantize_static``
(QDQ, for each channel, u8s8 and s8s8, after ``quant_pre_process``), and for transformers
``quantize_dynamic``, after fusing attention; NNCF on OpenVINO's form of the model; ExecuTorch with
``XNNPACKQuantizer``, static for convolutional networks and dynamic for transformers. Shown are the
seconds that each tool takes, the most memory of its process, and the bytes of its weights file, or
why there is none. A file that exists is not written again. Needs the dependency group
``int8``; without ExecuTorch or NNCF the rows of these say so.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from runners import memory
from runners.apart import ApartError, run_apart
from variants import MODELS, VARIANTS, Source, Variant, bytes_of_weights, prepare


def work(variant: Variant, source: Source) -> tuple[float, int]:
    """Build one form of a model; return how long it took, and the most memory."""
    start = time.perf_counter()
    variant.build(source)
    return time.perf_counter() - start, memory.peak()


def built(variant: Variant, source: Source) -> str:
    """Build one form of a model in a process of its own, and return what the table says of it."""
    path = variant.path(source)
    if path.exists():
        return f"{'':8} {'':8} {bytes_of_weights(path) / 1e6:8.1f}  was there"
    try:
        seconds, peak = run_apart(work, (variant, source))
    except ApartError as failure:
        if path.is_file():
            path.unlink()  # half of it, which the next call would take for all
        return f"{'':8} {'':8} {'':8}  not built: {failure}"
    return f"{seconds:8.1f} {peak / 1e6:8.0f} {bytes_of_weights(path) / 1e6:8.1f}"


def main() -> None:
    """Read the command line, and print a row for each model and form."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=MODELS)
    parser.add_argument("--variant", nargs="+", choices=[variant.name for variant in VARIANTS])
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--sequence", type=int, default=128)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print(f"{'model':14} {'variant':20} {'s':>8} {'peak MB':>8} {'MB':>8}", flush=True)
    for name in arguments.model:
        source = prepare(name, arguments.folder, arguments.sequence, arguments.samples)
        for variant in VARIANTS:
            if not variant.maker or not variant.takes(source):
                continue
            if arguments.variant is None or variant.name in arguments.variant:
                print(f"{name:14} {variant.name:20} {built(variant, source)}", flush=True)


if __name__ == "__main__":
    main()
