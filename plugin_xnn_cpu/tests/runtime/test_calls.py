"""One table of kernels: ``csrc/kernels.def``, which C, Python and the documentation read."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from narrowpass.errors import BackendError
from narrowpass_planning.plan.executor import Entry
from narrowpass_xnn_cpu.native import calls, indexing, kernels
from narrowpass_xnn_cpu.native.library import extension
from narrowpass_xnn_cpu.native.problems import epilogue
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.runtime.tape import Tape

pytestmark = pytest.mark.anywhere

PROJECT = Path(__file__).parents[2]
CSRC = PROJECT / "csrc"


def test_calls_are_numbered_in_the_order_of_their_rows():
    lib = extension().lib
    assert [getattr(lib, name) for name in calls.table()] == list(range(lib.np_call_count))
    assert len(calls.table()) == lib.np_call_count > 80


def test_each_row_has_a_struct_that_python_can_allocate():
    ffi = extension().ffi
    for call in calls.table().values():
        assert call.summary, call.name
        if not call.params:
            assert not call.file, call.name
            continue
        text = (CSRC / call.file).read_text(encoding="utf-8")
        assert f"struct {call.params} {{" in text, call.name
        assert ffi.sizeof(f"struct {call.params}") > 0, call.name


def test_each_call_is_used():
    """A row that nothing calls is dead code."""
    sources = (PROJECT / "src").rglob("*.py")
    text = "\n".join(file.read_text(encoding="utf-8") for file in sources)
    unused = {name for name in calls.table() if not re.search(rf'"{name}"', text)}
    assert unused == set()


def test_calls_that_there_are_not():
    with pytest.raises(BackendError, match="NP_NOTHING"):
        calls.parameters("NP_NOTHING")
    with pytest.raises(BackendError, match="NP_UNARY"):
        calls.parameters("NP_UNARY")


def test_a_tape_takes_no_parameters_of_another_call():
    """C would read them as its own."""
    wrong = calls.parameters("NP_ADD_CLAMP", (1, 0.0, 1.0))
    for call, params in (("NP_COPY", wrong), ("NP_COPY", None), ("NP_UNARY", wrong)):
        with pytest.raises(BackendError, match=f"{call} takes parameters"):
            Tape([Entry(call, (0,), 1, None, params, False, "node")], 2)
    with pytest.raises(BackendError, match="NP_NOTHING"):
        Tape([Entry("NP_NOTHING", (0,), 1, None, None, False, "node")], 2)


def test_an_operator_call_without_an_operator_is_refused():
    tape = Tape([Entry("NP_UNARY", (0,), 1, None, None, False, "node")], 2)
    with pytest.raises(BackendError, match="the tape is damaged"):
        tape.run(shared(1))


def test_constants_are_those_of_c():
    lib = extension().lib
    assert calls.constant("NP_FUNCTION", "inverse root") == lib.NP_FUNCTION_INVERSE_ROOT
    assert calls.constant("NP_EPILOGUE", "tanh-gelu") == lib.NP_EPILOGUE_TANH_GELU
    with pytest.raises(BackendError, match=r"'tan gent' is none of .*tan.* \(NP_FUNCTION\)"):
        calls.constant("NP_FUNCTION", "tan gent")


def test_names_that_python_lists_are_those_of_c():
    """Where a choice is offered before the library is loaded, the names stand in Python too."""
    lib = extension().lib
    assert {name.replace("-", " ") for name in epilogue.FUNCTIONS} == set(names("NP_EPILOGUE"))
    assert {name or "none" for name in epilogue.RESIDUALS} == set(names("NP_RESIDUAL"))
    assert set(indexing.REDUCTIONS) == set(names("NP_SCATTER"))
    assert set(indexing.TYPES) | set(kernels.REDUCED_TYPES) <= set(names("NP_TYPE"))
    assert set(kernels.TARGETS) == set(names("NP_TARGET"))
    for number, target in enumerate(kernels.TARGETS):
        assert calls.constant("NP_TARGET", target) == number
    assert len(calls.parameters("NP_COPY").sizes) == lib.NP_MAX_DIMS
    assert len(extension().ffi.new("np_step *").inputs) == lib.NP_MAX_INPUTS


def names(prefix):
    """Return the names that have a constant, without calls, such as NP_SCATTER_ROWS."""
    return [
        name
        for name in calls.names(prefix)
        if f"{prefix}_{name.replace(' ', '_').upper()}" not in calls.table()
    ]
