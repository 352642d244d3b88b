"""Builds the C extension, beside the XNNPACK that it is linked with, or with portable operators."""

import atexit
import os
import shutil
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

sys.path.insert(0, str(Path(__file__).resolve().parent))

from build_tools import bundle, instruction_sets


class BuildWithLibrary(build_ext):
    """Puts the library into the package while the extension is compiled, and links them."""

    def run(self) -> None:
        """Bundle the library, if there is one, and build as usual.

        Exits with a message where there is no compiler.
        """
        program = instruction_sets.compiler()[0]
        if shutil.which(program) is None:
            raise SystemExit(
                f"\nnarrowpass-xnn-cpu: there is no C compiler {program!r}: install gcc or clang, "
                "or name yours in CC; or install a wheel, which needs none"
            )
        package = Path(self.get_ext_fullpath("narrowpass_xnn_cpu.native._xnn")).parent
        for extension in self.extensions:
            extension.extra_compile_args.append(WITHOUT_ITS_PATH)
            if bundle.is_portable():
                extension.sources += sorted(map(str, Path("portable").glob("*.c")))
                extension.include_dirs.append("portable")
                extension.define_macros.append(("NP_PORTABLE", "1"))
                extension.libraries.append("m")
            else:
                extension.libraries.append("dl")  # a part of libc since glibc 2.34
        # The library is fetched while files are compiled.
        with ThreadPoolExecutor(1) as pool:
            self.library = pool.submit(
                lambda: [] if bundle.is_portable() else bundle.bundle(package / "lib")
            )
            super().run()

    def build_extension(self, ext: Extension) -> None:
        """Compile each file for its instruction sets.

        Files are compiled side by side: one after the other they take more than a minute.
        """
        levels = instruction_sets.built_levels()
        if not self._knows_amx():
            levels -= {"avx512amx"}
        if instruction_sets.is_x86():
            absent = [level for level in instruction_sets.LEVELS if level not in levels]
            ext.define_macros += [(f"NP_WITHOUT_{level.upper()}", "1") for level in absent]
        compiled = [
            (source, name, flags)
            for source in ext.sources
            for name, flags in instruction_sets.variants(
                source.removeprefix("csrc/"), levels
            ).items()
        ]

        def objects(variant: tuple[str, str, list[str]]) -> list[str]:
            if self.library.done():
                self.library.result()  # ends the build where it could not be fetched
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
        ext.sources, ext.extra_objects = [], [*linked, *map(str, self.library.result())]
        super().build_extension(ext)

    def _knows_amx(self) -> bool:
        """Return whether the compiler and its assembler know AMX; others build without it."""
        if not instruction_sets.is_x86():
            return False
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder, "amx.c")
            source.write_text(
                "#include <immintrin.h>\nvoid tiles(void) { _tile_release(); }\n", encoding="utf-8"
            )
            try:
                self.compiler.compile(
                    [str(source)], output_dir=folder, extra_postargs=[*instruction_sets.AMX]
                )
            except CompileError:
                return False
        return True

    def get_outputs(self) -> list[str]:
        """Name the library's files too, so that a wheel takes them."""
        package = Path(self.get_ext_fullpath("narrowpass_xnn_cpu.native._xnn")).parent
        files = [] if bundle.is_portable() else bundle.files(package / "lib")
        return [*super().get_outputs(), *map(str, files)]


# Not in the source tree: a wheel must not take what an earlier build left there.
build_folder = tempfile.mkdtemp(prefix="narrowpass-xnn-cpu-")
atexit.register(shutil.rmtree, build_folder, ignore_errors=True)

WITHOUT_ITS_PATH = f"-ffile-prefix-map={build_folder}=build"
"""Flag of the compiler: two builds are of the same bytes, whatever that folder is called."""

setup(
    cffi_modules=["build_tools/extension.py:ffibuilder"],
    cmdclass={"build_ext": BuildWithLibrary},
    options={
        "bdist_wheel": {"py_limited_api": "cp311"},
        "build": {"build_base": build_folder},
        "egg_info": {"egg_base": build_folder},
    },
)
