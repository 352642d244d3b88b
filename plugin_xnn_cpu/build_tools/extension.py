"""The cffi builder of ``narrowpass_xnn_cpu.native._xnn``."""

from __future__ import annotations

import os

from cffi import FFI

from build_tools import kernels

PYTHON = """
extern "Python" int np_let_signals_in(void *context);
extern "Python" void *np_allocate_in_python(void *context, size_t size, size_t alignment);
extern "Python" void np_release_in_python(void *context, void *address);
"""
"""Python functions that C calls: in `native/runtime/signals.py` and `native/weights_cache.py`."""

# Without errno and traps, loops over rintf and the like are vectorized. Nothing is contracted to
# FMA, which not all processors have: `multiply_add` of simd/f32.h rounds once with all of them. NaN
# and infinities are handled as the standard says.
# Python's own flags ask for debug information, which is half the library and a tenth of the time.
FLAGS = ["-O3", "-g0", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off"]
# Functions of one type take what some of them need.
FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter"]
SANITIZERS = {
    "address": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    # Races between tiles are found in small tensors, too.
    "thread": ["-fsanitize=thread", "-DNP_PARALLEL_MIN_BYTES=1"],
}
"""Flags by the value of `NARROWPASS_XNN_SANITIZE`, for `tools/sanitize.py`."""

if "NARROWPASS_XNN_SANITIZE" in os.environ:
    # With more optimization, some files take minutes to compile. Reports need lines, not variables.
    FLAGS += ["-O1", "-g1", "-fno-omit-frame-pointer"]
    FLAGS += SANITIZERS[os.environ["NARROWPASS_XNN_SANITIZE"]]
    # Sizes of objects are left to AddressSanitizer: UBSan knows only those that are seen in the
    # same function, and checks for them are a sixth of the time. Python's own flags have -fwrapv,
    # which hides signed overflows, and with which these files take four times as long to compile.
    FLAGS += ["-fno-sanitize=object-size", "-fno-wrapv"]


def _files(kind: str) -> list[str]:
    folder = kernels.CSRC
    return sorted(f"csrc/{file.relative_to(folder)}" for file in folder.rglob(f"*.{kind}"))


ffibuilder = FFI()
ffibuilder.cdef(f"{kernels.declarations()}\n{PYTHON}")
ffibuilder.set_source(
    "narrowpass_xnn_cpu.native._xnn",
    kernels.source(),
    sources=_files("c"),
    depends=[*_files("h"), *_files("def")],
    include_dirs=["csrc"],
    extra_compile_args=["-std=c11", *FLAGS],
    extra_link_args=[
        *(flag for flag in FLAGS if flag.startswith("-fsanitize")),
        "-Wl,-rpath,$ORIGIN/lib",
        "-Wl,--allow-shlib-undefined",
        "-Wl,-z,now",
    ],
    py_limited_api=True,
)
