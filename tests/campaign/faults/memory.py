"""A process that has little memory: ``python -m faults.memory ACTION LIMIT KIND FOLDER``.

ACTION is ``build``, ``load`` or ``run``; LIMIT, in bytes, is what it may take beyond what it has
when it begins, of KIND ``data`` (what is written to), ``address`` (all that is mapped) or ``none``
(as much as it likes). Prints what became of it. `prepare` writes the files that it reads.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import narrowpass
from faults.groups import Group
from narrowpass import Bundle, load_model, save_model
from narrowpass.bundle import verify
from narrowpass.errors import NarrowpassError

WIDTH, ROWS = 1024, 8192
TEXT = f"""
<ir_version: 9, opset_import: ["" : 20]>
wide (float[N, {WIDTH}] x) => (float[N, {WIDTH}] y)
<float[{WIDTH}, {WIDTH}] a, float[{WIDTH}, {WIDTH}] b>
{{
    h = MatMul (x, a)
    r = Relu (h)
    y = MatMul (r, b)
}}
"""
MB = 1 << 20


def weights() -> list[Any]:
    """Return two matrices of 4 MB."""
    rng = np.random.default_rng(11)
    return [rng.standard_normal((WIDTH, WIDTH), np.float32) for _ in "ab"]


def feed() -> Any:
    """Return an input of 32 MB."""
    return np.random.default_rng(12).standard_normal((ROWS, WIDTH), np.float32)


def prepare(folder: Path) -> None:
    """Write the model, and a bundle of it."""
    import onnx
    import onnx_ir as ir
    from onnx import numpy_helper

    proto = onnx.parser.parse_model(TEXT)
    del proto.graph.value_info[:]
    for name, weight in zip("ab", weights(), strict=True):
        proto.graph.initializer.append(numpy_helper.from_array(weight, name))
    save_model(ir.from_proto(proto), folder / "m.onnx")
    narrowpass.build(load_model(folder / "m.onnx"), "", folder / "m.narrow", target="xnn-cpu")


def start(
    action: str, more: int, kind: str, folder: Path, group: Group | None = None
) -> subprocess.CompletedProcess[str]:
    """Run this module in a process, in a control group if any; see above for the arguments."""
    here = str(Path(__file__).parents[1])
    paths = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH", ""))))
    arguments = [action, str(more), kind, str(folder)]
    options = ("-X", "faulthandler", "-W", "ignore")
    command = [sys.executable, *options, "-m", "faults.memory", *arguments]
    return subprocess.run(
        group.command(command) if group else command,
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def is_right(x: Any, y: Any) -> bool:
    """Compare with numpy: 1024 terms twice, accumulated in another order."""
    a, b = weights()
    right = np.maximum(x @ a, 0) @ b
    return bool(np.allclose(y, right, rtol=0, atol=1e-4 * np.abs(right).max()))


def build(folder: Path) -> Callable[[], bool]:
    """Build the bundle anew, over the old one."""

    def act() -> bool:
        model = load_model(folder / "m.onnx")
        narrowpass.build(model, "", folder / "m.narrow", target="xnn-cpu")
        return not verify(folder / "m.narrow")

    return act


def load(folder: Path) -> Callable[[], bool]:
    """Load it with an empty cache, and run a row."""

    def act() -> bool:
        cache = folder / "cache"
        with narrowpass.load(folder / "m.narrow", "xnn-cpu", threads=2, cache_dir=cache) as program:
            rows.append(program.run({"x": x})["y"])
        return True

    x, rows = feed()[:1], list[Any]()
    return act


def run(folder: Path) -> Callable[[], bool]:
    """Run many rows: the memory of values grows; after an error a row still runs."""
    program = narrowpass.load(
        Bundle.load(folder / "m.narrow"), "xnn-cpu", threads=2, cache="memory"
    )
    x = feed()
    few = program.run({"x": x[:1]})["y"]

    def act() -> bool:
        try:
            return len(program.run({"x": x})["y"]) == ROWS
        finally:
            if not np.array_equal(program.run({"x": x[:1]})["y"], few):
                raise AssertionError("a row is wrong after an error")

    return act


def limit(kind: str, more: int) -> None:
    """Allow so much more memory."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    field = {"data": "VmData", "address": "VmSize"}[kind]
    (now,) = (int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith(field))
    which = {"data": resource.RLIMIT_DATA, "address": resource.RLIMIT_AS}[kind]
    resource.setrlimit(which, (now + more, resource.RLIM_INFINITY))


def main() -> None:
    """Do it, and say what became of it."""
    action, more, kind, place = sys.argv[1], int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    act = {"build": build, "load": load, "run": run}[action](place)
    threading.stack_size(1 << 18)
    if kind != "none":
        limit(kind, more)
    try:
        said = "right" if act() else "wrong"
    except MemoryError:
        said = "MemoryError"
    except NarrowpassError as error:
        said = f"a clear error: {error}" if len(str(error)) > 20 else f"an unclear error: {error}"
    except BaseException as error:  # noqa: BLE001  # it is what is looked for
        said = f"{type(error).__name__}: {error}"
    os.write(1, said.encode())
    os._exit(0)


if __name__ == "__main__":
    main()
