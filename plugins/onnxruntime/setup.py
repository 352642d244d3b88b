"""Builds the C extension with the execution provider."""

import atexit
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).resolve().parent))

# Not in the source tree: a wheel must not take what an earlier build left there.
build_folder = tempfile.mkdtemp(prefix="narrowpass-onnxruntime-")
atexit.register(shutil.rmtree, build_folder, ignore_errors=True)

setup(
    cffi_modules=["build_tools/extension.py:ffibuilder"],
    options={
        "bdist_wheel": {"py_limited_api": "cp311"},
        "build": {"build_base": build_folder},
    },
)
