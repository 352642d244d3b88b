"""The cffi builder of ``narrowpass_xnn_cpu.native._xnn``."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cffi import FFI

CSRC = Path(__file__).resolve().parent.parent / "csrc"
HEADERS = (
    "runtime/isa.h",
    "xnnpack/xnnpack.h",
    "runtime/params.h",
    "epilogue/epilogue.h",
    "gemm/int8/int8.h",
    "conv/fp32.h",
    "depthwise/fp32.h",
    "depthwise/separable.h",
    "conv/bf16.h",
    "quantize/dynamic.h",
    "elementwise/params.h",
    "recurrent/recurrent.h",
    "trees/trees.h",
    "gemv/gemv.h",
    "gemv/nbits.h",
    "gemm/fp32/int8_weights.h",
    "movement/index.h",
    "quantize/int16.h",
    "gemm/matmul/matmul.h",
    "movement/pick.h",
    "runtime/workers.h",
    "runtime/weights_cache.h",
    "runtime/tape.h",
    "runtime/loop.h",
)

PYTHON = 'extern "Python" int np_let_signals_in(void *context);'
"""What C calls in Python: `native/signals.py` has it."""

_CONSTANT = re.compile(r"#define \w+ (?:0x)?[0-9a-fA-F]+u?$")


def declarations() -> str:
    """Give the headers as cffi reads them: no directives but simple constants."""
    lines: list[str] = []
    for header in HEADERS:
        text = (CSRC / header).read_text(encoding="utf-8")
        lines += [x for x in text.splitlines() if not x.startswith("#") or _CONSTANT.match(x)]
    return "\n".join([*lines, PYTHON])


# Without errno and traps loops over rintf and the like become vector code, and products and sums
# may become one instruction. NaN and infinities keep their meaning.
FLAGS = ["-O3", "-fno-math-errno", "-fno-trapping-math", "-ffp-contract=fast"]
FLAGS += ["-fvisibility=hidden", "-Wall", "-Wextra"]
if "NARROWPASS_XNN_SANITIZE" in os.environ:
    # For `tox -e sanitize`. Optimized further, checks make some files take minutes to compile.
    # Reports need lines, not variables. Sizes of objects are left to AddressSanitizer: UBSan knows
    # only those that are seen in the same function, and checks for them are a sixth of the time.
    FLAGS += [
        "-O1",
        "-g1",
        "-fno-omit-frame-pointer",
        "-fsanitize=address,undefined",
        "-fno-sanitize=object-size",
    ]
    # Python's own flags make signed numbers wrap, which hides overflows, and with which these files
    # take four times as long to compile.
    FLAGS += ["-fno-sanitize-recover=undefined", "-fno-wrapv"]

ffibuilder = FFI()
ffibuilder.cdef(declarations())
ffibuilder.set_source(
    "narrowpass_xnn_cpu.native._xnn",
    "".join(f'#include "{header}"\n' for header in HEADERS),
    sources=sorted(f"csrc/{file.relative_to(CSRC)}" for file in CSRC.rglob("*.c")),
    depends=sorted(f"csrc/{file.relative_to(CSRC)}" for file in CSRC.rglob("*.h")),
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
