"""Builds the C extension with the execution provider."""

import atexit
import shutil
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py

sys.path.insert(0, str(Path(__file__).resolve().parent))

STARTUP = "narrowpass_onnxruntime.pth"
LINE = (
    'import os; os.environ.get("NARROWPASS_ONNXRUNTIME", "0") in ("", "0") '
    'or __import__("narrowpass_onnxruntime_startup")\n'
)
"""What the interpreter executes when it starts: it reads a variable, and imports nothing else."""


class BuildWithStartup(build_py):
    """Puts a `.pth` file beside the packages, so that a variable can turn the provider on."""

    def run(self) -> None:
        """Build as usual, then write the file; an editable installation has none."""
        super().run()
        if not self.editable_mode:
            file = Path(self.build_lib, STARTUP)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(LINE, encoding="utf-8")

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Name the file too, so that a wheel takes it."""
        found = super().get_outputs(include_bytecode)
        return found if self.editable_mode else [*found, str(Path(self.build_lib, STARTUP))]


class BuildWithoutPaths(build_ext):
    """Keeps the name of the folder that it builds in, which is random, out of debug information."""

    def run(self) -> None:
        """Build as usual, with the flag: two builds are of the same bytes."""
        for extension in self.extensions:
            extension.extra_compile_args.append(f"-ffile-prefix-map={build_folder}=build")
        super().run()


# Not in the source tree: a wheel must not take what an earlier build left there.
build_folder = tempfile.mkdtemp(prefix="narrowpass-onnxruntime-")
atexit.register(shutil.rmtree, build_folder, ignore_errors=True)

setup(
    cmdclass={"build_ext": BuildWithoutPaths, "build_py": BuildWithStartup},
    cffi_modules=["build_tools/extension.py:ffibuilder"],
    options={
        "bdist_wheel": {"py_limited_api": "cp311"},
        "build": {"build_base": build_folder},
        "egg_info": {"egg_base": build_folder},
    },
)
