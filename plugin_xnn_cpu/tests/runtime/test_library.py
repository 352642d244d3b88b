"""The library beside the extension: what it is, what it needs, and that all of it is tried."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import narrowpass_xnn_cpu.native as native
from narrowpass_xnn_cpu.native.library import extension

pytestmark = pytest.mark.anywhere

FOLDER = Path(native.__file__).parent
LIBRARIES = sorted(FOLDER.glob("lib/*.so"))
EXTENSION = FOLDER / "_xnn.abi3.so"


@pytest.mark.xnnpack
def test_the_library_is_bundled():
    assert native.unavailable() is None
    assert len(LIBRARIES) == 3
    assert all(file.name.startswith("libnarrowpass_") for file in LIBRARIES)


def test_loading_it_leaves_no_names_to_others():
    code = (
        "import ctypes, narrowpass_xnn_cpu.native.library as l; l.extension();"
        "all_of_them = ctypes.CDLL(None);"
        "print(hasattr(all_of_them, 'xnn_initialize'), hasattr(all_of_them, 'np_run'))"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["False", "False"]


def test_torch_in_the_same_process_keeps_its_own_libraries():
    """PyTorch has a pthreadpool and a cpuinfo of its own."""
    pytest.importorskip("torch", reason="torch takes 700 MB: tried where it is installed")
    for order in ("torch, {}", "{}, torch"):
        code = f"import {order.format('narrowpass_xnn_cpu.native.library')};"
        code += "import narrowpass_xnn_cpu.native.runtime.pool as p; assert p.shared(2).handle"
        subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("file", [EXTENSION, *LIBRARIES], ids=lambda file: file.name)
def test_it_needs_no_newer_glibc_than_manylinux_2_28(file):
    symbols = set(re.findall(rb"GLIBC_(\d+)\.(\d+)", file.read_bytes()))
    assert max((int(a), int(b)) for a, b in symbols) <= (2, 28)


def test_each_declared_function_is_used():
    """No header comes with the library: what is declared here is called by some test."""
    csrc = Path(__file__).parents[2] / "csrc"
    header = (csrc / "xnnpack" / "xnnpack.h").read_text(encoding="utf-8")
    function = r"\b((?:xnn|pthreadpool)_\w+(?<!_fn))(?:\(|(?=[,;]))"
    types = set(re.findall(r"\b(?:struct|enum|union) (\w+)|(\w+_t)\b", header))
    declared = set(re.findall(function, header)) - {name for pair in types for name in pair}
    assert len(declared) > 40
    sources = [*FOLDER.parent.rglob("*.py"), *csrc.rglob("*.c"), csrc / "kernels.def"]
    text = "\n".join(file.read_text(encoding="utf-8") for file in sources)
    unused = {name for name in declared if not re.search(rf"\b{name}\b", text)}
    assert unused == set()
    lib = extension().lib
    assert all(hasattr(lib, name) for name in declared)


def test_a_missing_library_is_a_reason_and_no_crash(tmp_path):
    """The backend says why it cannot run, and `reference` serves."""
    code = (
        "import importlib, sys; importlib.import_module_ = importlib.import_module\n"
        "def broken(name, *rest):\n"
        "    if name.endswith('._xnn'): raise ImportError('libnarrowpass_xnnpack.so: gone')\n"
        "    return importlib.import_module_(name, *rest)\n"
        "importlib.import_module = broken\n"
        "from narrowpass.framework.plugins import load_plugins\n"
        "registry = load_plugins(['onnxruntime']).registry\n"
        "print(registry.backend(None).name)\n"
        "from narrowpass_xnn_cpu.native import unavailable\n"
        "print(unavailable())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    default, reason = done.stdout.splitlines()
    assert default == "reference"
    assert reason == (
        "the native library cannot be loaded: libnarrowpass_xnnpack.so: gone; "
        "reinstall narrowpass-xnn-cpu"
    )


def test_another_library_in_its_place_is_refused(monkeypatch):
    from narrowpass_xnn_cpu.native import library

    monkeypatch.setattr(library, "_IDENTIFIER", "0" * 64)
    library._load.cache_clear()
    try:
        with pytest.raises(library.LibraryUnavailableError, match="another library stands"):
            library._load()
    finally:
        library._load.cache_clear()


def loads(environment: dict[str, str]) -> str:
    """Return what a fresh process reports about the library, and its path."""
    code = (
        "from narrowpass_xnn_cpu.native import unavailable; print(unavailable());"
        "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'xnnpack.so' in line})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "NARROWPASS_ISA": "", **environment},
    )
    return done.stdout


@pytest.mark.xnnpack
def test_another_build_of_xnnpack_is_loaded(tmp_path):
    for file in LIBRARIES:
        shutil.copy(file, tmp_path)
    path = tmp_path / "libnarrowpass_xnnpack.so"
    assert loads({"NARROWPASS_XNNPACK": str(path)}).split() == ["None", str(path)]


@pytest.mark.xnnpack
def test_another_build_that_will_not_do(tmp_path):
    gone = loads({"NARROWPASS_XNNPACK": str(tmp_path / "gone.so")})
    assert gone.startswith("NARROWPASS_XNNPACK: ")
    assert "cannot open shared object file" in gone
    text = tmp_path / "text.so"
    text.write_text("no library")
    assert "NARROWPASS_XNNPACK: " in loads({"NARROWPASS_XNNPACK": str(text)})
    other = tmp_path / "libother.so"
    shutil.copy(next(file for file in LIBRARIES if "base" in file.name), other)
    assert "does not stand in for" in loads({"NARROWPASS_XNNPACK": str(other)})
