"""The cffi builder of ``narrowpass_onnxruntime.provider._provider``."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]

FLAGS = ["-std=c11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra"]


def _plain(name: str) -> str:
    """Return a header without comments and directives, but with its simple constants."""
    text = re.sub(r"/\*.*?\*/", "", (CSRC / name).read_text(encoding="utf-8"), flags=re.DOTALL)
    kept = [
        line
        for line in text.splitlines()
        if not line.startswith("#") or re.fullmatch(r"#define \w+ \d+ *", line)
    ]
    return "\n".join(kept)


def _table() -> str:
    """Return the struct of onnxruntime's functions that are called."""
    rows = re.findall(r"^ORT\(\d+, (.+?), (\w+), (\(.*\))\)$", _plain("ort.def"), re.MULTILINE)
    fields = "".join(f"  {result} (*{name}){arguments};\n" for result, name, arguments in rows)
    return f"typedef struct {{\n{fields}  const OrtEpApi *ep;\n}} np_ort;\n"


PROVIDER = """
typedef struct {
  OrtEp base;
  void *handle;
} np_ep;
const np_ort *np_ort_loaded(void);
bool np_is_alive(void);
void np_set_alive(bool alive);
"""

PYTHON = """
extern "Python+C" {
  OrtStatus *np_create_ep(np_ep *, const OrtSessionOptions *, const OrtLogger *);
  OrtStatus *np_get_capability(np_ep *, const OrtGraph *, OrtEpGraphSupportInfo *);
  OrtStatus *np_compile(np_ep *, const OrtGraph **, const OrtNode **, size_t,
                        OrtNodeComputeInfo **);
  OrtStatus *np_compute_in_python(np_kernel *, OrtKernelContext *);
  void np_forget(void *);
}
"""
"""Python functions that C calls: in `provider/callbacks.py`."""

ffibuilder = FFI()
ffibuilder.cdef(
    _plain("abi.h")
    + _table()
    + _plain("replay.h")
    + _plain("kernel.h")
    + _plain("condense.h")
    + PROVIDER
    + PYTHON
)
ffibuilder.set_source(
    "narrowpass_onnxruntime.provider._provider",
    '#include "condense.h"\n#include "provider.h"',
    sources=sorted(f"csrc/{file.name}" for file in CSRC.glob("*.c")),
    depends=sorted(f"csrc/{file.name}" for file in CSRC.glob("*.[hd]*")),
    include_dirs=["csrc"],
    define_macros=[("NP_VERSION", f'"{VERSION}"')],
    extra_compile_args=FLAGS,
    extra_link_args=["-Wl,-z,now"],
    py_limited_api=True,
)
