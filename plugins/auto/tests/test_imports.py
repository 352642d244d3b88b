"""What listing passes imports: each command does it."""

from __future__ import annotations

import subprocess
import sys

CODE = """
import sys
from narrowpass import load_plugins
assert "auto" in list(load_plugins().registry.passes)
print([name for name in sys.modules if name.partition(".")[0] == "scipy"])
"""


def test_scipy_is_imported_where_a_choice_is_computed():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
