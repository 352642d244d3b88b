"""Bundles with weights of known content, for the tests of the weights cache."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import importlib.metadata
import io
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from xnn_kit import compile_with

from narrowpass import Bundle
from narrowpass.cli import main
from narrowpass_planning.weights.folder import CacheFile
from narrowpass_planning.weights.names import key_of
from narrowpass_xnn_cpu.native.packer import PACKER
from narrowpass_xnn_cpu.program import XnnProgram

RNG = np.random.default_rng(21)
Array = np.ndarray[Any, Any]


def linear(weight: Array, bias: Array | None = None) -> onnx.ModelProto:
    """Build x · weight.T + bias."""
    constants = {"w": weight} if bias is None else {"w": weight, "b": bias}
    node = helper.make_node("Gemm", ["x", *constants], ["y"], transB=1, name="fc")
    return model([node], weight.shape[1], constants)


def model(
    nodes: Sequence[onnx.NodeProto], width: int, constants: Mapping[str, Array]
) -> onnx.ModelProto:
    """Build a model from x [N, width] to y."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", width])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    return onnx.shape_inference.infer_shapes(proto)


def network(seed: int = 0, width: int = 48) -> onnx.ModelProto:
    """Build two matmuls and a convolution, so that several kinds of weights are packed."""
    rng = np.random.default_rng(seed)

    def floats(*shape: int) -> Array:
        return rng.standard_normal(shape).astype(np.float32)

    constants = {
        "w0": floats(64, width),
        "b0": floats(64),
        "w1": floats(64, 36),
        "k": floats(5, 1, 3, 3),
        "c": floats(5),
        "shape": np.array([-1, 1, 6, 6], np.int64),
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h"], transB=1),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["m"]),
        helper.make_node("Reshape", ["m", "shape"], ["i"]),
        helper.make_node("Conv", ["i", "k", "c"], ["y"]),
    ]
    return model(nodes, width, constants)


def saved(path: Path, **methods: onnx.ModelProto) -> Bundle:
    """Write a bundle and open it again."""
    Bundle({name: ir.from_proto(proto) for name, proto in methods.items()}).save(path)
    return Bundle.load(path)


def compiled(bundle: Bundle, folder: Path | None = None, **options: Any) -> XnnProgram:
    """Compile a bundle on one thread, with its cache in `folder`."""
    chosen = {"threads": 1, "cache_dir": folder, **options}
    program = compile_with(bundle, chosen)
    assert isinstance(program, XnnProgram)
    return program


def weights(program: XnnProgram) -> dict[str, Any]:
    """Return the statistics of a program's weights."""
    found: dict[str, Any] = program.stats()["weights"]
    return found


def result(program: XnnProgram, x: Array, method: str = "main") -> Array:
    """Run a method on x."""
    return program.run({"x": x}, method)["y"]


INPUT = np.random.default_rng(5).standard_normal((3, 48)).astype(np.float32)


def load_in_child(path: str, folder: str, ready: Any, results: Any) -> None:
    """Load a bundle in a child process when `ready` is set; put packs and outputs in `results`."""
    bundle = Bundle.load(path)
    ready.wait()
    program = compiled(bundle, Path(folder))
    results.put((weights(program)["packs"], result(program, INPUT).tobytes()))


def path_of(bundle: Bundle, folder: Path) -> Path:
    """Return the path of the file of a bundle's packed weights."""
    key = key_of(bundle)
    assert key is not None
    return CacheFile(folder, key, PACKER).path


def loads(bundle: Bundle, folder: Path) -> list[int]:
    """Load three times; return what each packed. All results must be those without a cache."""
    right = result(compiled(bundle, cache=False), INPUT)
    packs = []
    for _ in range(3):
        program = compiled(bundle, folder)
        np.testing.assert_array_equal(result(program, INPUT), right)
        packs.append(weights(program)["packs"])
        program.close()
        del program
        gc.collect()  # what failed may refer to itself in a circle
    return packs


def resigned(header: bytes, index: bytes, payload: bytes) -> bytes:
    """Put a file together with right checksums of a wrong header and index."""
    text = bytearray(header[:96])
    text[32:64] = hashlib.sha256(index).digest()
    return bytes(text) + hashlib.sha256(bytes(text)).digest() + payload + index


def fork(work: Callable[[], object]) -> int:
    """Fork a process that does the work and ends; return its number.

    What fails there ends it with 1, and never goes on in a second pytest.
    """
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        work()
        code = 0
    except BaseException:  # noqa: BLE001  # whatever it is, the process ends
        traceback.print_exc()
    finally:
        os._exit(code)


NOBODY = 65534
"""The number of a user, and of a group, that own nothing."""


def as_user(work: Callable[[], object]) -> None:
    """Do the work in a process of `NOBODY`, where this one is the superuser's; else here.

    That user may not read the packages: what it needs of them is imported and listed before.
    """
    if os.geteuid():
        work()
        return
    entries = importlib.metadata.entry_points()
    versions = {found.name: found.version for found in importlib.metadata.distributions()}

    def change() -> None:
        importlib.metadata.entry_points = entries.select
        importlib.metadata.version = versions.__getitem__
        os.setgroups([])
        os.setresgid(NOBODY, NOBODY, NOBODY)
        os.setresuid(NOBODY, NOBODY, NOBODY)
        work()

    assert os.waitstatus_to_exitcode(os.waitpid(fork(change), 0)[1]) == 0


def own(folder: Path) -> None:
    """Let the user of `as_user` own a folder and all in it."""
    if os.geteuid() == 0:
        for path in (folder, *folder.rglob("*")):
            os.chown(path, NOBODY, NOBODY)


def command(*arguments: object) -> tuple[int, str]:
    """Run ``narrowpass cache``; return its exit code and what it printed."""
    with pytest.raises(SystemExit) as ended, contextlib.redirect_stdout(io.StringIO()) as text:
        main(["cache", *map(str, arguments)])
    return int(ended.value.code or 0), text.getvalue()
