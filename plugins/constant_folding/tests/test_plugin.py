"""The distribution as a plugin: its entry point, and what importing it costs."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

from narrowpass_constant_folding import narrowpass_passes
from narrowpass_constant_folding.passes.expand_operators import ExpandOperators
from narrowpass_constant_folding.passes.fold import Fold
from narrowpass_constant_folding.passes.freeze_weights import FreezeWeights
from narrowpass_constant_folding.passes.upgrade_opset import UpgradeOpset


def test_the_entry_point_registers_fold_all_its_parts_and_others():
    (entry,) = importlib.metadata.entry_points(group="narrowpass", name="constant-folding")
    assert entry.value == "narrowpass_constant_folding"
    registered = entry.load().narrowpass_passes()
    assert registered == narrowpass_passes()
    parts = (type(part) for part in Fold().parts())
    assert set(registered) == {ExpandOperators, Fold, FreezeWeights, UpgradeOpset, *parts}


def test_importing_the_entry_module_loads_nothing_heavy():
    code = (
        "import sys, narrowpass_constant_folding;"
        "print([m for m in ('onnx', 'onnx_ir', 'numpy', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
