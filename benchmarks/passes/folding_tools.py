"""Runs one tool on one model and prints what it took; `folding.py` calls it.

    python benchmarks/passes/folding_tools.py TOOL IN OUT

Prints JSON: the seconds for reading, optimizing and writing, imports not counted, and the peak of
the resident memory above what the imports left, in megabytes.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

Run = Callable[[], object]


def narrowpass(source: str, target: str) -> Run:
    """Prepare narrowpass's `fold`."""
    import narrowpass.bundle
    import narrowpass.driver

    for name in ("narrowpass_ir.io", "narrowpass_ir.verify"):
        importlib.import_module(name)  # before the run that is timed
    plugins = narrowpass.load_plugins()
    narrowpass.driver.registry_for(plugins)
    return lambda: narrowpass.build(source, "fold", target, target="reference", plugins=plugins)


def onnxsim(source: str, target: str) -> Run:
    """Prepare onnxsim."""
    import onnx
    import onnxsim as tool

    def run() -> None:
        model, fine = tool.simplify(onnx.load(source))
        if not fine:
            raise SystemExit("onnxsim's own check failed")
        onnx.save(model, target)

    return run


def onnxslim(source: str, target: str) -> Run:
    """Prepare onnxslim."""
    import onnx
    import onnxslim as tool

    return lambda: onnx.save(tool.slim(source), target)


def onnxoptimizer(source: str, target: str) -> Run:
    """Prepare onnxoptimizer: all passes that fuse or eliminate, to a fixed point."""
    import onnx
    import onnxoptimizer as tool

    passes = tool.get_fuse_and_elimination_passes()
    return lambda: onnx.save(tool.optimize(onnx.load(source), passes, fixed_point=True), target)


def onnxscript(source: str, target: str) -> Run:
    """Prepare onnxscript's optimizer."""
    import onnx_ir as ir
    from onnxscript import optimizer

    def run() -> None:
        model = ir.load(source)
        ir.save(optimizer.optimize(model) or model, target)

    return run


def onnxruntime(source: str, target: str) -> Run:
    """Prepare onnxruntime's basic level, which writes the optimized model."""
    import onnxruntime as tool

    options = tool.SessionOptions()
    options.graph_optimization_level = tool.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = target
    options.log_severity_level = 3
    return lambda: tool.InferenceSession(source, options, providers=["CPUExecutionProvider"])


TOOLS = (narrowpass, onnxsim, onnxslim, onnxoptimizer, onnxscript, onnxruntime)


def megabytes(field: str) -> float:
    """Return the resident memory of this process: ``VmRSS`` is that of now, ``VmHWM`` the peak."""
    lines = Path("/proc/self/status").read_text("ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6


def main() -> None:
    """Run the tool that the command line names."""
    name, source, target = sys.argv[1:]
    prepared = next(tool for tool in TOOLS if tool.__name__ == name)(source, target)
    before = megabytes("VmRSS")
    start = time.perf_counter()
    prepared()
    seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "megabytes": megabytes("VmHWM") - before}))


if __name__ == "__main__":
    main()
