"""Measure what the tests of Python modules notice: mutate a line, run the tests, for each place.

``mutants.py [NAME ...] [--count 40] [--seed 0] [--list]`` takes the mutants of cosmic-ray for the
modules and packages of `TESTS` (all by default): for each place in the code one, drawn by the
seed, and COUNT of them at most for each name. It prints those that survive, and for each name how
many were killed, and how many survive for a reason that `mutants.toml` has: they compute the same.
Exits with 1 where 5 % or more of a name's mutants survive without a reason.

No file is changed: the tests run in a forked process that imports the mutated text in place of the
module, wherever that is installed. What the tests start as another process is not mutated.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import itertools
import multiprocessing
import os
import random
import signal
import sys
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parent.parent
REASONS = ROOT / "tools" / "mutants.toml"
MOST_UNEXPLAINED = 0.05

_VERIFIER = "core/tests/models/verify/test_verify"
_CACHE = "plugins/planning/tests/weights"
_STORED = "plugins/planning/tests/stored"
_NATIVE = "plugin_xnn_cpu/tests/cache"
TESTS = {
    "narrowpass_ir.verify": (
        f"{_VERIFIER}_broken.py",
        f"{_VERIFIER}_signature.py",
        f"{_VERIFIER}_texts.py",
        f"{_VERIFIER}_fingerprint.py",
        f"{_VERIFIER}_valid.py",
        f"{_VERIFIER}_mutations.py",
        f"--deselect={_VERIFIER}_valid.py::test_every_node_test_of_onnx",  # longer than all others
    ),
    "narrowpass_ir.data.trust": ("core/tests/models/data/test_trust.py",),
    "narrowpass_int8_sym.static.scale_constraints": (
        "plugin_int8_sym/tests/static/test_scale_constraints.py",
    ),
    "narrowpass_planning.partitioner": ("plugins/planning/tests/test_partitioner.py",),
    "narrowpass_planning.weights.cache": (f"{_CACHE}/test_sessions.py",),
    "narrowpass_planning.weights.entry": (f"{_CACHE}/test_sessions.py",),
    "narrowpass_planning.weights.file": (f"{_CACHE}/test_packed_file.py",),
    "narrowpass_planning.weights.folder": (f"{_CACHE}/test_folder.py",),
    "narrowpass_planning.weights.names": (f"{_CACHE}/test_names.py",),
    "narrowpass_planning.weights.packing": (f"{_CACHE}/test_packing.py",),
    "narrowpass_planning.weights.session": (f"{_CACHE}/test_sessions.py",),
    "narrowpass_planning.weights.store": (
        f"{_CACHE}/test_sessions.py",
        f"{_CACHE}/test_sharing.py",
    ),
    "narrowpass_planning.weights.weight": (f"{_CACHE}/test_weight.py",),
    "narrowpass_planning.weights.writing": (f"{_CACHE}/test_writing.py",),
    "narrowpass_planning.program.stored_methods": (
        f"{_NATIVE}/test_stored_methods.py",
        f"{_NATIVE}/test_stored_damage.py",
        # Another process, which is not mutated.
        f"--deselect={_NATIVE}/test_stored_methods.py::test_a_program_is_restored_by_another_process",
        f"--deselect={_NATIVE}/test_stored_methods.py::test_a_disk_that_is_full",
    ),
    "narrowpass_planning.stored.codec": (f"{_STORED}/test_codec.py",),
    "narrowpass_planning.stored.file": (f"{_STORED}/test_file.py",),
    "narrowpass_planning.stored.tensors": (f"{_STORED}/test_codec.py",),
}
"""Modules, and packages with all their modules, and the tests that must notice a mutant of them."""

LOADED = ("ml_dtypes", "numpy", "onnx", "onnx_ir", "pytest")
"""What each process of tests would import anew; no module of `TESTS` may come with it."""


SAME = ("ReplaceComparisonOperator_Is_Eq", "ReplaceComparisonOperator_IsNot_NotEq")
"""Operators whose mutants compute the same on None, flags and members of enums."""


@dataclass(frozen=True)
class Mutant:
    """A changed module.

    Attributes:
        module: its name.
        line: the first one that is changed, from 1.
        before, after: that line, without the space around it.
        text: of the whole module.
    """

    module: str
    line: int
    before: str
    after: str
    text: str


def sources(name: str) -> list[tuple[str, Path]]:
    """Return the modules of a name of `TESTS`, with their files in the repository."""
    relative = name.replace(".", "/")
    for folder in (ROOT / "core", *sorted(ROOT.glob("plugin*_*")), *sorted(ROOT.glob("plugins/*"))):
        file = folder / "src" / f"{relative}.py"
        if file.is_file():
            return [(name, file)]
        package = file.with_suffix("")
        if package.is_dir():
            files = sorted(file for file in package.glob("*.py") if file.stem != "__init__")
            return [(f"{name}.{file.stem}", file) for file in files]
    sys.exit(f"{name} is no module of this repository")


def meaning(text: str) -> str | None:
    """Return what a module's text means to Python: neither annotations nor docstrings, no places.

    None for text that is no Python.
    """
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign):
            node.annotation = ast.Constant(None)
        if isinstance(node, ast.FunctionDef):
            node.returns = None
    return ast.dump(tree)


def places(text: str) -> list[list[tuple[str, int]]]:
    """Return the places of a text in order, each with the operators of cosmic-ray that change it.

    An operator is a name, and which of all places that it can change this is.
    """
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast(text)))
    found: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for name in sorted(operator_names()):
        if name.rpartition("/")[2] in SAME or get_operator(name).arguments():
            continue  # the second ones need names that somebody chooses
        operator = get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for number, start in enumerate(starts):
            found.setdefault(start, []).append((name, number))
    return [ways for _, ways in sorted(found.items())]


def mutant(module: str, text: str, ways: Sequence[tuple[str, int]]) -> Mutant | None:
    """Return the first mutant of a place that means something else; None where none does."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    for name, number in ways:
        after = mutate_code(text, get_operator(name)(), number)
        if meaning(after) in (None, meaning(text)):
            continue
        pairs = zip(text.splitlines(), after.splitlines(), strict=False)
        numbered = enumerate(pairs, 1)
        line, (one, other) = next((n, pair) for n, pair in numbered if pair[0] != pair[1])
        return Mutant(module, line, one.strip(), other.strip(), after)
    return None


def draw(files: Mapping[str, Path], count: int, seed: int) -> list[Mutant]:
    """Draw places of modules, and a mutant for each, in the order that they are drawn in."""
    choice = random.Random(seed)
    every = [
        (module, text, choice.sample(ways, len(ways)))
        for module, file in files.items()
        for text in [file.read_text(encoding="utf-8")]
        for ways in places(text)
    ]
    shuffled = choice.sample(every, len(every))
    found = (each for each in itertools.starmap(mutant, shuffled) if each is not None)
    of_types = (each for each in found if "TYPE_CHECKING" not in each.before)
    return list(itertools.islice(of_types, count))


class _Loader(SourceFileLoader):
    """Loads a module from a text in place of its file's."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)


class _Finder:
    """Finds the mutated module, and no other."""

    def __init__(self, module: str, text: str) -> None:
        self._module, self._text = module, text

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path) if name == self._module else None
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(name, spec.origin, self._text)
        return spec


def _test(module: str, text: str, tests: Sequence[str]) -> None:
    """Run tests with a text in place of a module; exits with 0 where all pass."""
    import pytest

    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    sys.meta_path.insert(0, _Finder(module, text))
    code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", *tests])
    os._exit(int(code))


def survives(module: str, text: str, tests: Sequence[str], patience: float) -> bool:
    """Return whether tests pass, within some seconds, with a text in place of a module."""
    process = multiprocessing.get_context("fork").Process(target=_test, args=(module, text, tests))
    process.start()
    process.join(patience)
    if process.is_alive():
        os.killpg(process.pid or 0, signal.SIGKILL)
        process.join()
    return process.exitcode == 0


def baseline(module: str, file: Path, tests: Sequence[str]) -> float:
    """Return the seconds that tests take without a mutant; exit where they do not pass."""
    start = time.monotonic()
    if not survives(module, file.read_text(encoding="utf-8"), tests, 600):
        sys.exit(f"the tests of {module} fail without a mutant: pytest {' '.join(tests)}")
    return time.monotonic() - start


def explained_mutants() -> set[tuple[str, str, str]]:
    """Return the modules (empty: any), and lines before and after, of mutants with a reason."""
    rows = tomllib.loads(REASONS.read_text(encoding="utf-8"))["same"]
    return {(row.get("module", ""), row["before"], row["after"]) for row in rows}


def attempt(name: str, options: argparse.Namespace) -> bool:
    """Try the mutants of a name of `TESTS`, and report; return whether enough are noticed."""
    files = dict(sources(name))
    drawn = draw(files, options.count, options.seed)
    if options.list:
        for each in drawn:
            _say(f"{each.module}:{each.line}:\n  - {each.before}\n  + {each.after}")
        return True
    known = explained_mutants()
    patience = 10 + 5 * baseline(*next(iter(files.items())), TESTS[name])
    killed = explained = 0
    for each in drawn:
        if not survives(each.module, each.text, TESTS[name], patience):
            killed += 1
        elif known & {(module, each.before, each.after) for module in (each.module, "")}:
            explained += 1
        else:
            _say(f"survived: {each.module}:{each.line}:\n  - {each.before}\n  + {each.after}")
    left = len(drawn) - killed - explained
    counts = f"{len(drawn)} mutants, {killed} killed, {explained} the same, {left} left"
    _say(f"{name}: {counts}")
    return left < MOST_UNEXPLAINED * len(drawn) or not left


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> None:
    """Try the mutants of each name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="print the mutants alone")
    options = parser.parse_args()
    names = [name for name in TESTS if not options.names or name.startswith(tuple(options.names))]
    if not names:
        parser.error(f"no tests are known for {', '.join(options.names)}")
    os.chdir(ROOT)
    os.environ["CI"] = "1"  # the same examples of hypothesis for each mutant
    for each in LOADED:
        importlib.import_module(each)
    noticed = [attempt(name, options) for name in names]
    sys.exit(0 if all(noticed) else 1)


if __name__ == "__main__":
    main()
