"""``NARROWPASS_ISA``: what the kernels use of the processor, XNNPACK's and ours."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from narrowpass_xnn_cpu.native import isa
from narrowpass_xnn_cpu.native.library import extension

pytestmark = pytest.mark.anywhere

BUILT = isa.built(extension().lib)
PROCESSOR = isa.of_processor(extension().lib)
DETECTED = isa.LEVELS.index(isa.detected(extension().lib))
x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors have one level")

FEATURE = {"avx2": "avx2", "avx512": "avx512f", "avx512vnni": "avx512_vnni"}
"""A feature that Linux names, by the level that brings it."""


def process(code, level, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, isa.VARIABLE: level, **environment},
    )


SEEN = """
import json
from narrowpass_xnn_cpu.backend import XnnCpuBackend
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.problems.matmul import Matmul
from narrowpass_xnn_cpu.native.xnnpack import matmul as xnn_matmul
from narrowpass_xnn_cpu.native.own.panels import probe_layout
lib = extension().lib
import numpy as np
from narrowpass_xnn_cpu.native.weights_cache import WeightsCache
from narrowpass_planning.weights.weight import Weight
matrix = np.arange(128, dtype=np.float32).reshape(64, 2)
with WeightsCache().begin() as session:
    operator = xnn_matmul.create(Matmul(Weight.of(matrix), None), session)
    packed = np.frombuffer(extension().ffi.buffer(operator.block.address, 128 * 4), np.float32)
    # The first weight of a panel stands behind as many biases as the panel has columns.
    width = int(np.flatnonzero(packed == 2)[0]) - 1
print(json.dumps({"details": XnnCpuBackend().details(), "width": width}))
"""


def seen(level):
    done = process(SEEN, level)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@x86
@pytest.mark.parametrize("level", BUILT)
def test_the_level_in_use_is_the_lower_one(level):
    used = isa.LEVELS[min(DETECTED, isa.LEVELS.index(level))]
    expected = {"isa": used}
    if used != PROCESSOR:
        expected["processor"] = PROCESSOR
    if isa.LEVELS[DETECTED] != PROCESSOR:
        expected["build"] = f"has no kernels for {PROCESSOR}: {isa.HOW_TO_BUILD}"
    assert seen(level)["details"] == expected


class Lib:
    """A build with the kernels of some levels, on a processor of another one."""

    NP_AMX_REFUSED = 2

    def __init__(self, built, processor):
        self.built, self.processor = built, processor

    def np_isa_is_built(self, level):
        return isa.LEVELS[level - 1] in self.built

    def np_isa_of_processor(self):
        return isa.LEVELS.index(self.processor) + 1

    def np_isa_detected(self):
        return max(isa.LEVELS.index(level) for level in self.built) + 1

    np_isa = np_isa_detected

    def np_isa_amx(self):
        return 3


def test_a_build_that_lacks_the_best_level_says_so(monkeypatch):
    from narrowpass_xnn_cpu.backend import XnnCpuBackend
    from narrowpass_xnn_cpu.native import library

    fake = type("Extension", (), {"lib": Lib(("sse4", "avx2"), "avx512vnni")})
    monkeypatch.setattr(library, "extension", lambda: fake)
    monkeypatch.setattr(library, "is_portable", lambda: False)
    assert XnnCpuBackend().details() == {
        "isa": "avx2",
        "processor": "avx512vnni",
        "build": f"has no kernels for avx512vnni: {isa.HOW_TO_BUILD}",
    }
    assert [*XnnCpuBackend().instruction_sets()] == ["avx2"]


def test_a_level_that_the_build_lacks_is_refused():
    with pytest.raises(isa.CapError, match="no kernels for avx2, but for sse4, avx512; name one"):
        isa.check_built("avx2", Lib(("sse4", "avx512"), "avx512"))
    isa.check_built("avx512", Lib(("sse4", "avx512"), "avx512"))


@x86
@pytest.mark.skipif(isa.LEVELS.index("avx512") > DETECTED, reason="no AVX-512")
def test_xnnpack_packs_for_the_level():
    """Its panels are as wide as the registers of its micro-kernels ask for."""
    levels = [level for level in ("sse4", "avx2", "avx512") if level in BUILT]
    widths = [seen(level)["width"] for level in levels]
    assert widths == sorted(widths)
    assert widths[0] < widths[-1]


def test_an_unknown_level_is_refused():
    code = (
        "from narrowpass_xnn_cpu.backend import XnnCpuBackend; print(XnnCpuBackend().available())"
    )
    reason = process(code, "avx3").stdout
    assert reason.startswith("NARROWPASS_ISA: 'avx3' is none of sse4, plain, avx2, avx512,")
    assert "name one of them, or unset it" in reason


def test_it_does_not_go_with_another_build_of_xnnpack():
    code = "from narrowpass_xnn_cpu.native import unavailable; print(unavailable())"
    reason = process(code, "plain", NARROWPASS_XNNPACK="/other.so").stdout
    assert "unset it, or NARROWPASS_XNNPACK" in reason


@x86
def test_a_table_that_is_not_as_known_is_left_alone(monkeypatch):
    """What cpuinfo says must agree with Linux where both speak of a feature."""

    class Other:
        def __init__(self, path, flags):
            self.cpuinfo_initialize = Initialize()

    class Initialize:
        restype = None

        def __call__(self):
            return True

    table = (ctypes.c_uint8 * 85)()

    class Table:
        def in_dll(self, library, name):
            return table

    monkeypatch.setattr(ctypes, "CDLL", Other)
    table_type = type("T", (), {"__mul__": lambda self, size: Table()})()
    monkeypatch.setattr(ctypes, "c_uint8", table_type)
    with pytest.raises(isa.CapError, match="cpuinfo and Linux disagree about avx2"):
        isa.cap_xnnpack("avx512bf16", Path(), frozenset({"avx2"}), 0)
    assert not any(table)


@x86
@pytest.mark.parametrize("level", [x for x in FEATURE if FEATURE[x] in isa.flags()])
def test_features_that_linux_reports_are_detected(level):
    assert isa.LEVELS.index(level) <= DETECTED


RESULTS = """
import numpy as np
import onnx
from xnn_kit import compile_model
model = onnx.load({model!r})
x = np.load({feeds!r})
np.save({out!r}, compile_model(model).run({{"x": x}})["y"])
"""


@x86
def test_results_hardly_depend_on_the_level(tmp_path):
    """A network of convolutions, a depthwise one, GELU, a norm and matmuls, on each level."""
    ort = pytest.importorskip("onnxruntime")
    from onnx import numpy_helper, parser

    rng = np.random.default_rng(3)
    text = """<ir_version: 10, opset_import: ["" : 20]>
    g (float[N, 3, 17, 19] x) => (float[N, 10] y) {
        a = Conv <pads = [1, 1, 1, 1], strides = [2, 2]> (x, k)
        b = Gelu (a)
        c = Conv <pads = [1, 1, 1, 1], group = 24> (b, d)
        e = HardSwish (c)
        f = Conv (e, p)
        s = Add (f, b)
        m = GlobalAveragePool (s)
        r = Flatten (m)
        n = LayerNormalization (r, g1, g2)
        h = MatMul (n, w1)
        i = Gelu (h)
        y = Gemm (i, w2, b2)
    }"""
    model = parser.parse_model(text)
    shapes = {"k": (24, 3, 3, 3), "d": (24, 1, 3, 3), "p": (24, 24, 1, 1), "g1": (24,)}
    shapes |= {"g2": (24,), "w1": (24, 100), "w2": (100, 10), "b2": (10,)}
    for name, shape in shapes.items():
        array = (rng.standard_normal(shape) / 3).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    path, feeds, out = tmp_path / "m.onnx", tmp_path / "x.npy", tmp_path / "y.npy"
    path.write_bytes(model.SerializeToString())
    x = rng.standard_normal((2, 3, 17, 19)).astype(np.float32)
    np.save(feeds, x)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    (right,) = session.run(None, {"x": x})
    code = RESULTS.format(model=str(path), feeds=str(feeds), out=str(out))
    for level in BUILT[: BUILT.index(isa.LEVELS[DETECTED]) + 1]:
        out.unlink(missing_ok=True)
        done = process(code, level, PYTHONPATH=str(Path(__file__).parents[1] / "kits"))
        assert done.returncode == 0, done.stderr
        # Dot products of up to 216 elements in another order, five layers in sequence.
        np.testing.assert_allclose(np.load(out), right, rtol=0, atol=2e-5 * np.abs(right).max())


REFUSED = """
import ctypes, json


class Stack(ctypes.Structure):
    _fields_ = [("sp", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t)]


# Linux refuses tiles where a stack for signals has no room for them.
memory = ctypes.create_string_buffer(8192)
stack = Stack(ctypes.addressof(memory), 0, len(memory))
assert ctypes.CDLL(None).sigaltstack(ctypes.byref(stack), None) == 0
import numpy as np
from narrowpass_xnn_cpu.backend import XnnCpuBackend
print(json.dumps(XnnCpuBackend().details()))
"""


@pytest.mark.skipif(
    extension().lib.np_isa_amx() != extension().lib.NP_AMX_USABLE, reason="no AMX that can be used"
)
def test_where_linux_refuses_tiles_the_level_is_the_one_below():
    done = subprocess.run(
        [sys.executable, "-c", REFUSED],
        capture_output=True,
        text=True,
        check=False,
        env={name: value for name, value in os.environ.items() if name != isa.VARIABLE},
    )
    assert done.returncode == 0, done.stderr
    details = json.loads(done.stdout)
    assert details["isa"] == "avx512bf16"
    assert "refused by the operating system" in details["amx"]
    assert "processor" not in details


def test_levels_of_features_that_linux_lists():
    """For plans without the library: a level needs all that it adds."""
    if platform.machine() != "x86_64" or isa.cap():
        pytest.skip("other processors have one level, and a cap hides the higher ones")
    present = frozenset(isa._FEATURES)
    assert isa.listed(present) == "avx512bf16"
    assert isa.listed(present | {"amx_tile", "amx_int8"}) == "avx512bf16"
    assert isa.listed(present | {"amx_tile", "amx_int8", "amx_bf16"}) == "avx512amx"
