"""onnx_ir without sympy: nothing that it computes is other than with it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SYMBOLS = """
import json, sys
{before}
import onnx_ir as ir
early = "sympy" in sys.modules
n = ir.SymbolicDim("n")
known = ir.SymbolicDim("max(n, 2) + floor(m / 2)")
dims = [n + 1, 2 * n - n, n // 2, known + 0, ir.SymbolicDim(n._expr * n._expr)]
texts = [str(dim) for dim in dims] + [str(dim.simplify()) for dim in dims]
values = [int(dim.evaluate({{"n": 7, "m": 5}})) for dim in dims]
try:
    ir.SymbolicDim(2.5)
except TypeError as error:
    texts.append(str(error))
import sympy
texts.append(str(sympy.Symbol("x") + sympy.Symbol("x")))
print(json.dumps([early, type(sympy).__name__, texts, values]))
"""
LIGHT = "import narrowpass_ir"


def run(code, *folders):
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path[:0] = {[*map(str, folders)]!r}\n{code}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def test_arithmetic_is_that_of_sympy_which_comes_when_it_is_needed():
    early, kind, *found = run(SYMBOLS.format(before=LIGHT))
    plain_early, plain_kind, *expected = run(SYMBOLS.format(before=""))
    assert plain_early
    assert not early
    assert (found, kind) == (expected, plain_kind)
    assert 7 + 1 in expected[1]


@pytest.mark.parametrize("before", ["import sympy", "import onnx_ir"])
def test_what_is_imported_stays(before):
    code = f"""
{before}
kept = {before.split()[1]}
{LIGHT}
import json, sympy, onnx_ir
print(json.dumps([kept is {before.split()[1]}, sympy.__spec__ is not None]))
"""
    assert run(code) == [True, True]


PACKAGE = {
    "__init__.py": "from onnx_ir import _core\n",
    "_core.py": """
import sympy
import os.path
from sympy import Symbol
from . import _symbolic_shapes


class Odd(sympy.Function):
    pass


TWO = int(sympy.Integer(2))
""",
    "_symbolic_shapes.py": "import sympy\n",
}


def test_a_library_that_needs_sympy_at_once_gets_it(tmp_path):
    package = tmp_path / "onnx_ir"
    package.mkdir()
    for name, text in PACKAGE.items():
        (package / name).write_text(text)
    code = f"""
{LIGHT}
import json, onnx_ir, sympy, os
core = onnx_ir._core
print(json.dumps([
    core.TWO, issubclass(core.Odd, sympy.Function), core.Symbol is sympy.Symbol, core.os is os,
]))
"""
    assert run(code, tmp_path) == [2, True, True, True]


def test_a_library_that_is_not_there_is_an_import_error(tmp_path):
    package = tmp_path / "onnx_ir"
    package.mkdir()
    (package / "__init__.py").write_text("from onnx_ir import _core\n")
    (package / "_core.py").write_text("raise ImportError('no such library')\n")
    code = f"""
import json
{LIGHT}
try:
    import onnx_ir
except ImportError as error:
    print(json.dumps([str(error), "sympy" in sys.modules]))
"""
    assert run(code, tmp_path) == ["no such library", False]


def test_source_and_cached_code_of_the_library_stay():
    """Debuggers and `inspect` read the source; a second process reads the bytecode."""
    code = f"""
import json
{LIGHT}
import inspect, onnx_ir._core as core
print(json.dumps([
    "import sympy" in inspect.getsource(core),
    core.__cached__ is not None,
    core.__builtins__["open"] is open,
    core.__spec__.name,
]))
"""
    assert run(code) == [True, True, True, "onnx_ir._core"]


def test_other_threads_get_sympy_itself():
    """While one thread imports onnx_ir, a module that another imports subclasses sympy's."""
    code = f"""
import json, threading
{LIGHT}
found = []
def use():
    import sympy
    class Odd(sympy.Function):
        pass
    found.append(type(sympy).__name__)
thread = threading.Thread(target=use)
thread.start()
import onnx_ir
thread.join()
print(json.dumps(found))
"""
    assert run(code) == ["module"]


ENTRIES = [
    "import narrowpass; narrowpass.Bundle",
    "from narrowpass.cli import main",
    "import narrowpass.framework.passes",
    "import narrowpass_ir.io",
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_no_entry_imports_sympy(entry):
    code = f"import json\n{entry}\nprint(json.dumps('sympy' in sys.modules))"
    assert run(code) is False
