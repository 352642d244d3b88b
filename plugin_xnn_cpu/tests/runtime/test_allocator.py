"""XNNPACK allocates by the allocator with a reserve, and takes none of that until memory lacks.

`tests/campaign/test_faults.py` has calls of malloc that fail.
"""

from __future__ import annotations

import numpy as np
import pytest
from xnn_kit import compile_model, one_node

from narrowpass.errors import BackendError
from narrowpass_xnn_cpu.native import library

pytestmark = pytest.mark.anywhere


def test_xnnpack_has_the_reserve_and_takes_nothing_of_it():
    model = one_node("ReduceMean", [[2, 3]])
    with compile_model(model) as program:
        (spec,) = program.inputs()
        program.run({spec.name: np.ones((2, 3), np.float32)})
    lib = library.extension().lib
    assert bool(lib.np_xnn_has_reserve()) is not library.is_portable()
    assert not lib.np_xnn_lacked_memory()


@pytest.mark.parametrize("lacked", [0, 1])
def test_an_operator_of_the_reserve_is_deleted(monkeypatch, lacked):
    deleted = []

    class Lib:
        def np_xnn_lacked_memory(self):
            return lacked

        def xnn_delete_operator(self, handle):
            deleted.append(handle)

    class Extension:
        lib = Lib()

    monkeypatch.setattr(library, "extension", Extension)
    if lacked:
        with pytest.raises(BackendError, match="no operator: out of memory"):
            library.check_created(0, ["handle"], "no operator")
    else:
        library.check_created(0, ["handle"], "no operator")
    assert deleted == ["handle"] * lacked
    deleted.clear()
    with pytest.raises(BackendError):
        library.check_created(6, ["handle"], "no operator")
    assert deleted == []  # there is none
