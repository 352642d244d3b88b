"""Measure what the tests of Python modules notice: mutate a line, run the tests, for each place.

``mutants.py [NAME ...] [--count 40] [--seed 0] [--list] [--record FILE]`` takes the mutants of
cosmic-ray for the modules and packages of `TESTS` (all by default): for each place in the code one,
drawn by the seed, and COUNT of them at most for each name. It prints those that survive, and for
each name how many were killed, and how many have a reason in `mutants.toml` to survive: they
compute the same and are not tried. Exits with 1 where 5 % or more of a name's mutants survive
without a reason. ``--record`` writes each mutant, its outcome and the test that failed first.

``mutants.py [NAME ...] --against FILE`` tries the mutants of a record again: first the test that
failed, where it is still there, then all of that name. It prints for each name how many were killed
and are, and exits with 1 where they are fewer. Mutants whose lines have changed are left out.

No file is changed: the tests run in a forked process that imports the mutated text in place of the
module, wherever that is installed. What the tests start as another process is not mutated.
"""

from __future__ import annotations

import argparse
import ast
import gc
import importlib
import itertools
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import entry_points
from pathlib import Path
from types import CodeType, ModuleType

from mutation import (
    KILLED,
    PYTEST,
    ROOT,
    SAME,
    SURVIVED,
    Mutant,
    Row,
    add_options,
    difference,
    explained,
    no_lower,
    outcome,
    read,
    recorder,
    say,
)

MOST_UNEXPLAINED = 0.05

_VERIFIER = "core/tests/models/verify/test_verify"
_CACHE = "plugins/planning/tests/weights"
_STORED = "plugins/planning/tests/stored"
_NATIVE = "plugin_xnn_cpu/tests/cache"
_FOLDING = "plugins/constant_folding/tests"
_GENERATE = "plugins/generate/tests"
_FP16 = "plugin_fp16/tests"
_AUTO = "plugins/auto/tests"
_INT4 = "plugins/int4/tests"
_ORT = "plugins/onnxruntime/tests/session"
_SERVE = "plugins/serve/tests"
TESTS = {
    "narrowpass_ir.verify": (
        f"{_VERIFIER}_broken.py",
        f"{_VERIFIER}_signature.py",
        f"{_VERIFIER}_texts.py",
        f"{_VERIFIER}_fields.py",
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
    "narrowpass_decoders": (
        "plugins/decoders/tests",
        "plugins/huggingface/tests/test_numpy.py",
        "plugins/huggingface/tests/test_bad_input.py",
        # Blocks of integers, with and without an offset.
        "plugins/gguf/tests/test_files.py::test_each_type[reference-Q8_0]",
        "plugins/gguf/tests/test_files.py::test_each_type[xnn-cpu-Q4_1]",
    ),
    "narrowpass_gguf": (
        "plugins/gguf/tests/test_container.py",
        "plugins/gguf/tests/test_blocks.py",
        "plugins/gguf/tests/test_files.py",
    ),
    "narrowpass_huggingface": ("plugins/huggingface/tests",),
    "narrowpass_fp16": (
        f"{_FP16}/test_min_cut.py",
        f"{_FP16}/coloring",
        f"{_FP16}/test_functions.py",
        f"{_FP16}/test_placement.py",
        f"{_FP16}/test_placement_optimality.py",
        f"{_FP16}/corpus",
    ),
    "narrowpass_constant_folding": (
        f"{_FOLDING}/passes",
        f"{_FOLDING}/counterexamples",
        f"--ignore={_FOLDING}/passes/test_upgrade_opset.py",  # longer than all others
        f"--ignore={_FOLDING}/passes/test_fuse_random.py",
    ),
    "narrowpass_generate": (
        f"{_GENERATE}/test_sampling.py",
        f"{_GENERATE}/test_tokenizer.py",
        f"{_GENERATE}/test_text.py",
        f"{_GENERATE}/test_tokens.py",
        f"{_GENERATE}/test_speculation.py",
        f"{_GENERATE}/test_bad_input.py",
        # They wait for limits of time.
        f"--deselect={_GENERATE}/test_bad_input.py::test_a_chat_template_whose_texts_are_too_long",
        f"--deselect={_GENERATE}/test_bad_input.py::test_a_chat_template_that_takes_too_long",
    ),
    "narrowpass_serve": (
        f"{_SERVE}/test_protocol.py",
        f"{_SERVE}/test_completions.py",
        f"{_SERVE}/test_batches.py",
        f"{_SERVE}/test_reload.py",
        f"{_SERVE}/test_malformed.py",
    ),
    "narrowpass_auto": (
        f"{_AUTO}/test_units.py",
        f"{_AUTO}/test_injection.py",
        f"{_AUTO}/test_limits.py",
        f"{_AUTO}/test_problem.py",
        f"{_AUTO}/test_quiet.py",
        f"{_AUTO}/test_agreement.py",
        f"{_AUTO}/test_search.py",
    ),
    "narrowpass_int4": (
        f"{_INT4}/test_methods.py",
        f"{_INT4}/test_formats.py",
        f"{_INT4}/test_data.py",
        f"{_INT4}/test_states.py",
        f"{_INT4}/test_bad_input.py",
        f"--deselect={_INT4}/test_bad_input.py::test_random_models",
    ),
    "narrowpass_onnxruntime": (
        f"{_ORT}/test_results.py",
        f"{_ORT}/test_errors.py",
        f"{_ORT}/test_options.py",
        f"{_ORT}/test_binding.py",
        f"{_ORT}/test_interface.py",
        f"{_ORT}/test_store.py",
    ),
}
"""Modules, and packages with all their modules, and the tests that must notice a mutant of them."""

PARTS = {
    "narrowpass_fp16": ("coloring", "placement", "ranges", "mixed_precision"),
    "narrowpass_constant_folding": ("identities", "folding", "fusion", "passes"),
    "narrowpass_generate": (
        "tokenizer",
        "sampling",
        "streams",
        "generation",
        "decoder",
        "speculation",
        "template",
        "roles",
    ),
    "narrowpass_serve": (
        "completions",
        "models",
        "protocol.tensors",
        "protocol.requests",
        "protocol.inference",
        "protocol.routes",
        "json_body",
        "metrics",
    ),
    "narrowpass_onnxruntime": ("session",),
    "narrowpass_auto": ("agreement", "choice", "graph", "limits", "measure.injection"),
}
"""Modules and packages of a name that are mutated alone: tests of the others take too long."""

LOADED = ("hypothesis.extra.numpy", "ml_dtypes", "numpy", "onnx", "onnx_ir", "pytest")
"""With pytest's plugins, what each process of tests would import anew; with them comes no module of
`TESTS`."""

ALIKE = ("ReplaceComparisonOperator_Is_Eq", "ReplaceComparisonOperator_IsNot_NotEq")
"""Operators whose mutants compute the same on None, flags and members of enums."""


def sources(name: str) -> list[tuple[str, Path]]:
    """Return the modules of a name of `TESTS`, with their files in the repository."""
    wanted = [f"{name}.{part}" for part in PARTS.get(name, ())] or [name]
    return [pair for each in wanted for pair in _sources(each)]


def _sources(name: str) -> list[tuple[str, Path]]:
    relative = name.replace(".", "/")
    for folder in (ROOT / "core", *sorted(ROOT.glob("plugin*_*")), *sorted(ROOT.glob("plugins/*"))):
        file = folder / "src" / f"{relative}.py"
        if file.is_file():
            return [(name, file)]
        package = file.with_suffix("")
        if package.is_dir():
            files = sorted(file for file in package.rglob("*.py") if file.stem != "__init__")
            return [(_module(file.relative_to(folder / "src")), file) for file in files]
    sys.exit(f"{name} is no module of this repository")


def _module(file: Path) -> str:
    return ".".join(file.with_suffix("").parts)


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
        if name.rpartition("/")[2] in ALIKE or get_operator(name).arguments():
            continue  # the second ones need names that somebody chooses
        operator = get_operator(name)()
        starts = [start for node in nodes for start, _ in operator.mutation_positions(node)]
        for number, start in enumerate(starts):
            found.setdefault(start, []).append((name, number))
    return [ways for _, ways in sorted(found.items())]


def mutant(name: str, module: str, text: str, ways: Sequence[tuple[str, int]]) -> Mutant | None:
    """Return the first mutant of a place that means something else; None where none does."""
    from cosmic_ray.mutating import mutate_code
    from cosmic_ray.plugins import get_operator

    for operator, number in ways:
        after = mutate_code(text, get_operator(operator)(), number)
        if meaning(after) not in (None, meaning(text)):
            return difference(name, module, text, after)
    return None


def draw(name: str, files: Mapping[str, Path], count: int, seed: int) -> list[Mutant]:
    """Draw places of modules, and a mutant for each, in the order that they are drawn in."""
    choice = random.Random(seed)
    every = [
        (name, module, text, choice.sample(ways, len(ways)))
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
    """Run tests with a text in place of a module; exits as pytest does."""
    import pytest

    os.setsid()
    quiet = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(quiet, stream)
    sys.meta_path.insert(0, _Finder(module, text))
    os._exit(int(pytest.main([*PYTEST, *tests])))


def runner(module: str, text: str, patience: float) -> Callable[[Sequence[str]], int]:
    """Return what runs tests with a text in place of a module, for some seconds at most.

    It returns how pytest exits; a negative number where a signal ended it.
    """

    def run(tests: Sequence[str]) -> int:
        process = multiprocessing.get_context("fork").Process(
            target=_test, args=(module, text, tests)
        )
        process.start()
        process.join(patience)
        if process.is_alive():
            os.killpg(process.pid or 0, signal.SIGKILL)
            process.join()
        return process.exitcode or 0

    return run


def baseline(module: str, file: Path, tests: Sequence[str]) -> float:
    """Return the seconds that tests take without a mutant; exit where they do not pass."""
    start = time.monotonic()
    _, test = outcome(runner(module, file.read_text(encoding="utf-8"), 600), tests, "")
    if test:
        sys.exit(f"without a mutant of {module} {test} fails: pytest {' '.join(tests)}")
    return time.monotonic() - start


def attempt(
    name: str, chosen: Sequence[tuple[Mutant, str]], record: Callable[[Row], None]
) -> list[Row]:
    """Try mutants of a name of `TESTS`, and return what came of them.

    Args:
        name: of `TESTS`.
        chosen: mutants, each with the test that noticed it once, or an empty text.
        record: keeps each row as soon as it is there.
    """
    files = dict(sources(name))
    known = explained("same")
    patience = 10 + 5 * baseline(*next(iter(files.items())), TESTS[name])
    rows = []
    for each, test in chosen:
        text = each.apply(files[each.module].read_text("utf-8")) if each.module in files else None
        if text is None:
            continue
        if known & {each.key, ("", *each.key[1:])}:
            row = Row(each, SAME)
        else:
            row = Row(each, *outcome(runner(each.module, text, patience), TESTS[name], test))
        record(row)
        rows.append(row)
        if row.outcome == SURVIVED:
            say(f"{SURVIVED}: {each}")
    return rows


def enough(name: str, rows: Sequence[Row]) -> bool:
    """Report a name's mutants; return whether few enough survive without a reason."""
    killed, same, left = (
        sum(row.outcome == each for row in rows) for each in (KILLED, SAME, SURVIVED)
    )
    say(f"{name}: {len(rows)} mutants, {killed} killed, {same} the same, {left} left")
    return left < MOST_UNEXPLAINED * len(rows) or not left


def main() -> None:
    """Try the mutants of each name."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    add_options(parser, count=40)
    options = parser.parse_args()
    wanted = tuple(options.names) or ("",)
    before = read(options.against) if options.against else []
    before = [row for row in before if row.mutant.name.startswith(wanted)]
    every = dict.fromkeys(row.mutant.name for row in before) if options.against else TESTS
    names = [name for name in every if name.startswith(wanted)]
    if not names or not TESTS.keys() >= set(names):
        parser.error(f"no tests are known for one of {', '.join(names or options.names)}")
    os.chdir(ROOT)
    os.environ["CI"] = "1"  # the same examples of hypothesis for each mutant
    for each in LOADED:
        importlib.import_module(each)
    for plugin in entry_points(group="pytest11"):
        plugin.load()
    gc.freeze()  # collections of the tests need not look at it
    after: list[Row] = []
    noticed = True
    with recorder(options.record) as record:
        for name in names:
            chosen = [(row.mutant, row.test) for row in before if row.mutant.name == name]
            if not options.against:
                drawn = draw(name, dict(sources(name)), options.count, options.seed)
                chosen = [(each, "") for each in drawn]
            if options.list:
                say("\n".join(str(each) for each, _ in chosen))
                continue
            rows = attempt(name, chosen, record)
            after += rows
            noticed &= enough(name, rows)
    if options.against and not options.list:
        noticed = no_lower(before, after)
    sys.exit(0 if noticed else 1)


if __name__ == "__main__":
    main()
