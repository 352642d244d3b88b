"""Random graphs, compiled in one program and restored in the next: the bits are the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from layer_recipes import chain

import narrowpass
from narrowpass import Bundle
from narrowpass.bundle import _plan
from narrowpass_planning.program.stored_methods import StoredMethods

pytestmark = pytest.mark.anywhere


def test_restored_programs_of_random_graphs(tmp_path, monkeypatch):
    restored = []
    load = StoredMethods.load

    def noted(*given):
        found = load(*given)
        restored.append(found is not None)
        return found

    monkeypatch.setattr(StoredMethods, "load", noted)
    monkeypatch.setattr(_plan, "EXTERNAL_BYTES", 1)  # small weights are named, too
    for seed in range(40):
        case = chain(seed, 12)
        path = tmp_path / f"{seed}.narrow"
        Bundle({"main": ir.from_proto(case.model)}).save(path)
        runs = []
        for _ in range(2):
            with narrowpass.load(path, "xnn-cpu", threads=1, cache_dir=tmp_path) as program:
                runs.append((program.run(case.feeds), program.explain()))
        (wanted, plans), (found, again) = runs
        assert again == plans
        for name, array in wanted.items():
            np.testing.assert_array_equal(found[name], array, err_msg=f"seed {seed}, {name!r}")
    assert sum(restored) > 12, "many graphs must be restored, or this compares nothing"
