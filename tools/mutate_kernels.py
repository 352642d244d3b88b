"""Measure what the tests of the C kernels notice: apply mutations one at a time, run the tests.

``mutate_kernels.py [FOLDER ...] [--count 5] [--seed 0] [--list]`` draws COUNT mutations of the
files in folders of ``csrc/`` (all of `TESTS` by default), each by one of `OPERATORS`. For each it
builds the extension in a temporary folder, runs the tests of that folder until one fails, and
reports `killed`, `survived` or `not compiled`; the change of a survivor is printed. A survivor is a
missing test, or code that computes the same. Exits with 1 where one survived.

The extension is compiled anew for each mutation: ``CC="ccache cc"`` saves the unchanged files.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PLUGIN = ROOT / "plugin_xnn_cpu"
PACKAGE = "narrowpass_xnn_cpu"
TIMEOUT = 900
"""Seconds for the tests of one mutation; a loop without an end is noticed, too."""

OPERATORS = (
    ("a loop goes one further", re.compile(r"(for \([^;]*;[^;<]*[^<-])<(?=[^<=])"), r"\1<="),
    ("a loop ends one earlier", re.compile(r"(for \([^;]*;[^;<]*)<="), r"\1<"),
    (
        "an accumulator starts anew",
        re.compile(r"((?:acc|sum|rest)\w*(?:\[[^]]*\])*) \+= "),
        r"\1 = ",
    ),
    ("a minimum is a maximum", re.compile(r"(_|f)min(_|f?\()"), r"\1max\2"),
    ("a maximum is a minimum", re.compile(r"(_|f)max(_|f?\()"), r"\1min\2"),
    ("an operand is dropped", re.compile(r"!= NULL"), "== NULL"),
    ("an index is off by one", re.compile(r"(\w) - 1\b"), r"\1"),
    ("a condition is weaker", re.compile(r" && "), " || "),
)
"""Each with a pattern of a line without comments, and what replaces its first match."""

TESTS = {
    "gemm/fp32": ("gemm/test_fp32_gemm.py", "conv/test_fp32_convolutions.py"),
    "gemm/bf16": ("gemm/test_bf16_kernels.py", "gemm/test_bf16_packing.py"),
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


@dataclass(frozen=True)
class Mutation:
    """A change of one line.

    Attributes:
        folder: of `TESTS`.
        file: below `csrc/`.
        number: of the line, from 1.
        name: of the operator.
        before, after: the line.
    """

    folder: str
    file: str
    number: int
    name: str
    before: str
    after: str


def mutations(csrc: Path, folder: str) -> Iterator[Mutation]:
    """Yield every mutation of a folder's files; comments, macros and prefetches are left alone."""
    for path in sorted((csrc / folder).rglob("*.[ch]")):
        text = re.sub(
            r"/\*.*?\*/",
            lambda m: re.sub(r"[^\n]", " ", m.group()),
            path.read_text(),
            flags=re.DOTALL,
        )
        for number, line in enumerate(text.splitlines(), 1):
            if "prefetch" in line or line.lstrip().startswith("#"):
                continue
            for name, pattern, replacement in OPERATORS:
                after = pattern.sub(replacement, line, count=1)
                if after != line:
                    file = str(path.relative_to(csrc))
                    yield Mutation(folder, file, number, name, line, after)


def draw(csrc: Path, folders: list[str], count: int, seed: int) -> list[Mutation]:
    """Draw mutations: a folder first, then a line of it, so that small folders have their share."""
    choice = random.Random(seed)
    every = {folder: list(mutations(csrc, folder)) for folder in folders}
    drawn: list[Mutation] = []
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


def build(work: Path) -> bool:
    """Compile the extension into the copy of the package; return whether that succeeded."""
    command = [
        sys.executable,
        "setup.py",
        "--quiet",
        "build_ext",
        "--build-lib",
        str(work / "site"),
    ]
    done = subprocess.run(command, check=False, cwd=work / "plugin", capture_output=True)
    return done.returncode == 0


def passes(work: Path, folder: str) -> bool:
    """Run the tests of a folder against the copy; return whether all passed in time."""
    tests = [str(PLUGIN / "tests" / name) for name in TESTS[folder]]
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {**os.environ, "PYTHONPATH": str(work / "site")}
    run = subprocess.Popen(
        command, cwd=ROOT, env=environment, start_new_session=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        return run.wait(TIMEOUT) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()


def attempt(work: Path, mutation: Mutation) -> str:
    """Apply a mutation, build, test, and restore the file; return the outcome."""
    path = work / "plugin" / "csrc" / mutation.file
    original = path.read_text()
    lines = original.splitlines(keepends=True)
    lines[mutation.number - 1] = f"{mutation.after}\n"
    path.write_text("".join(lines))
    try:
        if not build(work):
            return "not compiled"
        return "survived" if passes(work, mutation.folder) else "killed"
    finally:
        path.write_text(original)


def main() -> None:
    """Draw mutations, try each, and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folders", nargs="*", default=list(TESTS), metavar="FOLDER")
    parser.add_argument("--count", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print the mutations alone")
    options = parser.parse_args()
    if unknown := set(options.folders) - TESTS.keys():
        parser.error(
            f"no tests are known for {', '.join(sorted(unknown))}; one of {', '.join(TESTS)}"
        )
    drawn = draw(PLUGIN / "csrc", options.folders, options.count, options.seed)
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if not options.list:
            prepare(work)
        for mutation in drawn:
            outcome = "" if options.list else f"{attempt(work, mutation)}: "
            survivors += outcome.startswith("survived")
            sys.stdout.write(f"{outcome}{mutation.file}:{mutation.number}: {mutation.name}\n")
            if options.list or outcome.startswith("survived"):
                sys.stdout.write(f"  - {mutation.before.strip()}\n  + {mutation.after.strip()}\n")
            sys.stdout.flush()
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
