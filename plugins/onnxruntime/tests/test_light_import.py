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
LIGHT = "from narrowpass_onnxruntime.light_import import import_light; import_light()"


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


def test_a_library_that_needs_sympy_at_once_gets_it(tmp_path):
    package = tmp_path / "onnx_ir"
    package.mkdir()
    (package / "__init__.py").write_text("from onnx_ir.inner import TWO\n")
    (package / "inner.py").write_text(
        "import sympy\n\n\nclass Odd(sympy.Function):\n    pass\n\n\nTWO = int(sympy.Integer(2))\n"
    )
    code = f"{LIGHT}\nimport json, onnx_ir, sympy\n"
    code += "print(json.dumps([onnx_ir.TWO, issubclass(onnx_ir.inner.Odd, sympy.Function)]))"
    assert run(code, tmp_path) == [2, True]


def test_a_library_that_is_not_there_is_an_import_error(tmp_path):
    (tmp_path / "onnx_ir.py").write_text("raise ImportError('no such library')\n")
    code = """
import json
from narrowpass_onnxruntime.light_import import import_light
try:
    import_light()
except ImportError as error:
    print(json.dumps([str(error), "sympy" in sys.modules]))
"""
    assert run(code, tmp_path) == ["no such library", False]
