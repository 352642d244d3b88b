"""Builds the C extension, beside the XNNPACK that it is linked with."""

import atexit
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_tools import bundle, instruction_sets


class BuildWithLibrary(build_ext):
    """Puts the library into the package before the extension is linked against it."""

    def run(self) -> None:
        """Bundle the library, then build as usual."""
        package = Path(self.get_ext_fullpath("narrowpass_xnn_cpu.native._xnn")).parent
        files = bundle.bundle(package / "lib")
        for extension in self.extensions:
            extension.extra_objects = [str(file) for file in files]
        super().run()

    def build_extension(self, ext: Extension) -> None:
        """Compile each file for its instruction sets.

        Files are compiled side by side: one after the other they take more than a minute.
        """
        compiled = [
            (source, name, flags)
            for source in ext.sources
            for name, flags in instruction_sets.variants(source.removeprefix("csrc/")).items()
        ]

        def objects(variant: tuple[str, str, list[str]]) -> list[str]:
            source, name, flags = variant
            return self.compiler.compile(
                [source],
                output_dir=str(Path(self.build_temp, name)),
                macros=ext.define_macros,
                include_dirs=ext.include_dirs,
                debug=self.debug,
                extra_postargs=[*ext.extra_compile_args, *flags],
                depends=ext.depends,
            )

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            linked = [file for files in pool.map(objects, compiled) for file in files]
        ext.sources, ext.extra_objects = [], [*linked, *ext.extra_objects]
        super().build_extension(ext)

    def get_outputs(self) -> list[str]:
        """Name the library's files too, so that a wheel takes them."""
        package = Path(self.get_ext_fullpath("narrowpass_xnn_cpu.native._xnn")).parent
        return [*super().get_outputs(), *map(str, bundle.files(package / "lib"))]


# Not in the source tree: a wheel must not take what an earlier build left there.
build_folder = tempfile.mkdtemp(prefix="narrowpass-xnn-cpu-")
atexit.register(shutil.rmtree, build_folder, ignore_errors=True)

setup(
    cffi_modules=["build_tools/extension.py:ffibuilder"],
    cmdclass={"build_ext": BuildWithLibrary},
    options={
        "bdist_wheel": {"py_limited_api": "cp311"},
        "build": {"build_base": build_folder},
    },
)
