"""Compares rewrites to float16: validity, casts, error, bytes, time and memory.

    python benchmarks/passes/mixed_precision.py MODEL.onnx ... [--sequence 64]

Takes part what is installed: narrowpass, onnxconverter-common, the converter of
onnxruntime.transformers and ModelOpt's AutoCast (``pip install nvidia-modelopt[onnx]``), each in a
process of its own, on a model that `fold` has cleaned up first. Shown are whether onnx's full
checker and onnxruntime take the result, its casts, its bytes over those of the model, the seconds
of the rewrite, the memory of the process at most, and the largest relative error and the cosine of
the outputs against the model as it was. Onnxruntime computes most float16 nodes on a CPU in
float32, so that overflow may stay hidden. Needs the dependency groups
``peers`` and ``mixed``.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx

TOOLS = {
    "narrowpass": "narrowpass_fp16",
    "onnxconverter-common": "onnxconverter_common",
    "onnxruntime": "onnxruntime.transformers",
    "modelopt": "modelopt.onnx",
}


def rewrite(tool: str, source: str, target: str) -> float:
    """Rewrite a model with one tool; return the seconds without reading and writing the file."""
    if tool == "narrowpass":
        import narrowpass

        start = time.perf_counter()
        narrowpass.build(source, "fp16", out=target, target="reference")
        return time.perf_counter() - start
    if tool == "modelopt":
        from modelopt.onnx.autocast import convert_to_mixed_precision

        start = time.perf_counter()
        built = convert_to_mixed_precision(source, keep_io_types=True)
        seconds = time.perf_counter() - start
        onnx.save(built, target)
        return seconds
    model = onnx.load(source)
    start = time.perf_counter()
    if tool == "onnxruntime":
        from onnxruntime.transformers.float16 import convert_float_to_float16
    else:
        from onnxconverter_common.float16 import convert_float_to_float16
    built = convert_float_to_float16(model, keep_io_types=True)
    seconds = time.perf_counter() - start
    onnx.save(built, target)
    return seconds


def work(tool: str, source: str, target: str, results: Any) -> None:
    """Rewrite in a process of its own, and say how it went."""
    try:
        seconds = rewrite(tool, source, target)
    except Exception as error:  # noqa: BLE001 - the table shows what a tool cannot do
        results.put((f"{type(error).__name__}: {error}"[:60], 0.0, 0))
        return
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    (peak,) = [1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")]
    results.put(("", seconds, peak))


def casts(path: str) -> int:
    """Count the casts of a model, those in subgraphs too."""
    model = onnx.load(path, load_external_data=False)
    waiting, count = [model.graph], 0
    while waiting:
        for node in waiting.pop().node:
            count += node.op_type == "Cast"
            waiting += [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
    return count


def judge(path: str, right: list[np.ndarray[Any, Any]], feeds: dict[str, Any]) -> tuple[str, str]:
    """Return whether a model is valid, and how far its outputs are."""
    import onnxruntime

    try:
        onnx.checker.check_model(path, full_check=True)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        got = session.run(None, feeds)
    except Exception as error:  # noqa: BLE001 - the table shows what a model cannot do
        return f"no: {str(error).splitlines()[0][:50]}", ""
    worst, least = 0.0, 1.0
    for a, b in zip(got, right, strict=True):
        one, other = np.asarray(a, np.float64).ravel(), np.asarray(b, np.float64).ravel()
        worst = max(worst, float(np.abs(one - other).max() / max(np.abs(other).max(), 1e-30)))
        least = min(least, float(one @ other / (np.linalg.norm(one) * np.linalg.norm(other))))
    return "yes", f"{worst:9.1e} {least:.7f}"


def main() -> None:
    """Print a row for each model and tool."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--sequence", type=int, default=64)
    arguments = parser.parse_args()
    sys.path.append(str(Path(__file__).resolve().parents[1]))  # that of `runtimes`
    from runtimes import random_feeds

    import narrowpass

    tools = [t for t, module in TOOLS.items() if importlib.util.find_spec(module.split(".")[0])]
    context = multiprocessing.get_context("spawn")
    print(
        f"{'model':26} {'tool':22} {'valid':6} {'casts':>5} {'bytes':>6} {'s':>6} {'MB':>6}  error"
    )
    for model in arguments.models:
        with tempfile.TemporaryDirectory() as folder:
            source = f"{folder}/folded.onnx"
            narrowpass.build(model, "fold", out=source, target="reference")
            import onnxruntime

            feeds = random_feeds(source, arguments.sequence)
            session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
            right = session.run(None, feeds)
            size = Path(source).stat().st_size
            for tool in tools:
                results, target = context.Queue(), f"{folder}/{tool}.onnx"
                process = context.Process(target=work, args=(tool, source, target, results))
                process.start()
                failure, seconds, peak = results.get()
                process.join()
                if failure:
                    print(f"{model.stem:26} {tool:22} {failure}")
                    continue
                valid, error = judge(target, right, feeds)
                share = Path(target).stat().st_size / size
                print(
                    f"{model.stem:26} {tool:22} {valid:6} {casts(target):5} {share:6.3f} "
                    f"{seconds:6.2f} {peak / 1e6:6.0f}  {error}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
