"""Measure what the tests of the C kernels notice: apply mutations one at a time, run the tests.

``mutate_kernels.py [FOLDER ...] [--count 5] [--seed 0] [--list] [--record FILE]`` draws COUNT
mutations of the files in folders of ``csrc/`` (all of `TESTS` by default), each by one of
`OPERATORS`. For each it builds the extension in a temporary folder, runs the tests of that folder
until one fails, and reports `killed`, `survived`, `the same`, `not compiled` or `not on this
processor`; the change of a survivor is printed. A survivor is a missing test, or goes into
`mutants.toml` with the reason why it computes the same. Exits with 1 where one survived without a
reason. ``--record`` writes each mutation, its outcome and the test that failed first.

``mutate_kernels.py [FOLDER ...] --against FILE`` tries the mutations of a record again, as
`mutants.py` does: it exits with 1 where those of a folder that are killed are fewer than before.

The extension is compiled once; then, for each mutation, the files that read what was changed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from mutation import (
    PYTEST,
    ROOT,
    SAME,
    SURVIVED,
    Mutant,
    Row,
    add_options,
    explained,
    no_lower,
    outcome,
    read,
    recorder,
    say,
)

PLUGIN = ROOT / "plugin_xnn_cpu"
PACKAGE = "narrowpass_xnn_cpu"
TIMEOUT = 900
"""Seconds for the tests of one mutation; a loop without an end is noticed, too."""
NOT_COMPILED, NOT_HERE = "not compiled", "not on this processor"

OPERATORS = (
    # A loop goes one further, or ends one earlier.
    (re.compile(r"(for \([^;]*;[^;<]*[^<-])<(?=[^<=])"), r"\1<="),
    (re.compile(r"(for \([^;]*;[^;<]*)<="), r"\1<"),
    # An accumulator starts anew.
    (re.compile(r"((?:acc|sum|rest)\w*(?:\[[^]]*\])*) \+= "), r"\1 = "),
    # A minimum is a maximum, and the other way round.
    (re.compile(r"(_|f)min(_|f?\()"), r"\1max\2"),
    (re.compile(r"(_|f)max(_|f?\()"), r"\1min\2"),
    # An operand that may be missing is dropped.
    (re.compile(r"!= NULL"), "== NULL"),
    # An index is off by one.
    (re.compile(r"(\w) - 1\b"), r"\1"),
    # A condition is weaker.
    (re.compile(r" && "), " || "),
)
"""Each with a pattern of a line without comments, and what replaces its first match."""

TESTS = {
    "gemm/fp32": ("gemm/test_fp32_gemm.py", "conv/test_fp32_convolutions.py"),
    "gemm/bf16": ("gemm/test_bf16_kernels.py", "gemm/test_bf16_packing.py", "gemm/test_amx.py"),
    "gemm/int8": ("int8",),
    "gemm/matmul": ("gemm/test_computed_matmul.py", "attention/test_attention.py"),
    "gemv": (
        "gemm/test_gemv.py",
        "gemm/test_nbits.py",
        "quantized/test_rows_in_blocks.py",
        "quantized/test_float8_weights.py",
        "quantized/test_joined_matmuls.py",
        "quantized/test_stacked_blocks.py",
    ),
    "conv": ("conv", "int8/test_int8_convolutions.py"),
    "depthwise": ("conv/test_fp32_depthwise.py", "int8/test_int8_convolutions.py"),
    "winograd": ("conv/test_fp32_winograd.py", "int8/test_int8_convolutions.py"),
    "attention": ("attention", "state/test_narrow_caches.py"),
    "norm": ("operators/test_row_normalization.py", "operators/test_broadcast_scales.py"),
    "elementwise": ("operators",),
    "recurrent": ("recurrent",),
    "quantize": ("quantized", "int8"),
    "reduce": ("operators/test_typed_reductions.py",),
    "movement": ("operators", "graphs/test_computed_indices.py"),
    "trees": ("operators/test_trees.py",),
}
"""Folders of `csrc/` and the tests, in `plugin_xnn_cpu/tests`, that must notice a mutation."""

INSTRUCTIONS = {"amx": "amx_int8", "vnni": "avx512_vnni", "avx512": "avx512f"}
"""Parts of names of files that hold code for some processors alone; what Linux calls these."""

EDGES = "kernels/test_edges.py"
"""Tests of all kernels at their edges, with guards around results: they run first."""


def mutations(csrc: Path, folder: str) -> Iterator[Mutant]:
    """Yield every mutation of a folder's files; comments, macros and prefetches are left alone."""
    for path in sorted((csrc / folder).rglob("*.[ch]")):
        text = path.read_text()
        code = re.sub(
            r"/\*.*?\*/",
            lambda m: re.sub(r"[^\n]", " ", m.group()),
            text,
            flags=re.DOTALL,
        )
        lines = zip(text.splitlines(keepends=True), code.splitlines(keepends=True), strict=True)
        for number, (before, line) in enumerate(lines, 1):
            if "prefetch" in line or line.lstrip().startswith("#"):
                continue
            for pattern, replacement in OPERATORS:
                after = pattern.sub(replacement, line, count=1)
                if after != line:
                    file = str(path.relative_to(csrc))
                    yield Mutant(folder, file, number, before, after)


def applies(csrc: Path, mutation: Mutant) -> bool:
    """Return whether the lines that a mutation changes are still there."""
    file = csrc / mutation.module
    return file.is_file() and mutation.apply(file.read_text()) is not None


def draw(csrc: Path, folders: list[str], count: int, seed: int) -> list[Mutant]:
    """Draw mutations: a folder first, then a line of it, so that small folders have their share."""
    choice = random.Random(seed)
    every = {folder: list(mutations(csrc, folder)) for folder in folders}
    drawn: list[Mutant] = []
    while len(drawn) < count and any(every.values()):
        left = every[choice.choice([folder for folder in folders if every[folder]])]
        drawn.append(left.pop(choice.randrange(len(left))))
    return drawn


def prepare(work: Path) -> None:
    """Copy the sources and the installed package, whose bundled XNNPACK is used again."""
    ignored = shutil.ignore_patterns("tests", "build", "*.egg-info", "__pycache__")
    shutil.copytree(PLUGIN, work / "plugin", ignore=ignored)
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        sys.exit(f"{PACKAGE} is not installed: install it, with its tests' requirements")
    shutil.copytree(Path(spec.origin).parent, work / "site" / PACKAGE)


RECORDER = """import json, os, sys
command = [*{compiler!r}.split(), *sys.argv[1:]]
if "-c" in command:
    command += ["-MMD", "-MF", command[command.index("-o") + 1] + ".d"]
with open({log!r}, "a") as log:
    log.write(json.dumps([os.getcwd(), command]) + "\\n")
os.execvp(command[0], command)
"""
"""A compiler that writes down how it was called, and what each file reads."""


@dataclass(frozen=True)
class Command:
    """A call of the compiler.

    Attributes:
        folder: that it is called in.
        words: of the command.
        reads: files below `csrc/` that it reads; empty for the one that links.
    """

    folder: str
    words: Sequence[str]
    reads: frozenset[str]

    def run(self) -> bool:
        """Call it again; return whether that succeeded."""
        done = subprocess.run(self.words, check=False, cwd=self.folder, capture_output=True)
        return done.returncode == 0


def build(work: Path) -> list[Command]:
    """Compile the extension into the copy of the package; return how."""
    log, recorder = work / "commands", work / "recorder.py"
    text = RECORDER.format(compiler=os.environ.get("CC", "cc"), log=str(log))
    recorder.write_text(text, encoding="utf-8")
    (work / "objects").mkdir()
    compiler = f"{sys.executable} {recorder}"
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--force"]
    command += ["--build-lib", str(work / "site"), "--build-temp", str(work / "objects")]
    environment = {**os.environ, "CC": compiler, "LDSHARED": f"{compiler} -shared"}
    subprocess.run(command, check=True, cwd=work / "plugin", env=environment)
    return recorded(work)


def recorded(work: Path) -> list[Command]:
    """Return the calls of the compiler that were written down, but for trials of flags."""
    found = []
    for line in (work / "commands").read_text(encoding="utf-8").splitlines():
        folder, words = json.loads(line)
        produced = Path(folder, words[words.index("-o") + 1])
        if "-c" not in words:
            found.append(Command(folder, words, frozenset()))
        elif produced.is_relative_to(work / "objects"):
            text = produced.with_name(f"{produced.name}.d").read_text(encoding="utf-8")
            reads = {word.partition("csrc/")[2] for word in text.split() if "csrc/" in word}
            found.append(Command(folder, words, frozenset(reads)))
    return found


def build_again(commands: Sequence[Command], file: str) -> bool:
    """Compile what reads a file below `csrc/`, and link; return whether that succeeded."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        compiled = [*pool.map(Command.run, (each for each in commands if file in each.reads))]
    linked = [each for each in commands if not each.reads]
    return bool(compiled) and all(compiled) and all(each.run() for each in linked)


def test(work: Path, tests: Sequence[str]) -> int:
    """Run tests against the copy; return how pytest exits, or what signal ended it."""
    command = [sys.executable, "-m", "pytest", *PYTEST, *tests]
    path = [str(work / "site"), str(ROOT / "tools"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))}
    run = subprocess.Popen(
        command, cwd=ROOT, env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        return run.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        return -signal.SIGKILL
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def runs(file: str) -> bool:
    """Return whether this processor has the instructions that a file's name says."""
    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8").split()
    needed = [flag for word, flag in INSTRUCTIONS.items() if word in file]
    return all(flag in flags for flag in needed)


def attempt(work: Path, commands: Sequence[Command], mutation: Mutant, first: str) -> Row:
    """Apply a mutation, build, test, and restore the file; return what came of it.

    Args:
        work: the folder of the copy.
        commands: that build it.
        mutation: the change of a file.
        first: the test that noticed it once; empty where none did.
    """
    path = work / "plugin" / "csrc" / mutation.module
    original = path.read_text()
    path.write_text(mutation.apply(original) or original)
    tests = [str(PLUGIN / "tests" / name) for name in (EDGES, *TESTS[mutation.name])]
    try:
        if not build_again(commands, mutation.module):
            return Row(mutation, NOT_COMPILED)
        return Row(mutation, *outcome(lambda each: test(work, each), tests, first))
    finally:
        path.write_text(original)
        build_again(commands, mutation.module)


def attempts(chosen: Sequence[tuple[Mutant, str]]) -> Iterator[Row]:
    """Try mutations, each with the test that noticed it once; yield what came of each."""
    known = explained("kernels")
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        prepare(work)
        commands = build(work)
        for each, first in chosen:
            if each.key in known:
                yield Row(each, SAME)
            elif not runs(each.module):
                yield Row(each, NOT_HERE)
            else:
                yield attempt(work, commands, each, first)


def main() -> None:
    """Draw mutations, try each, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", default=list(TESTS), metavar="FOLDER")
    add_options(parser, count=5)
    options = parser.parse_args()
    if unknown := set(options.folders) - TESTS.keys():
        parser.error(
            f"no tests are known for {', '.join(sorted(unknown))}; one of {', '.join(TESTS)}"
        )
    csrc = PLUGIN / "csrc"
    before = [
        row
        for row in (read(options.against) if options.against else [])
        if row.mutant.name in options.folders
    ]
    chosen = [(row.mutant, row.test) for row in before if applies(csrc, row.mutant)]
    if not options.against:
        chosen = [(each, "") for each in draw(csrc, options.folders, options.count, options.seed)]
    if options.list:
        for each, _ in chosen:
            say(str(each))
        return
    after = []
    with recorder(options.record) as record:
        for row in attempts(chosen):
            record(row)
            after.append(row)
            change = row.mutant if row.outcome == SURVIVED else row.mutant.place
            say(f"{row.outcome}: {change}")
    survived = any(row.outcome == SURVIVED for row in after)
    worse = not no_lower(before, after) if options.against else survived
    sys.exit(1 if worse else 0)


if __name__ == "__main__":
    main()
