"""The core names the distribution of each pass and backend of this project, where it is missing."""

from __future__ import annotations

from narrowpass import load_plugins
from narrowpass.framework.plugins.ours import BACKENDS, PASSES

OURS = tuple(f"narrowpass-{name} " for name in ("constant-folding", "fp16", "int8-sym", "xnn-cpu"))


def test_what_our_plugins_have_is_listed():
    owners = load_plugins().registry.owners
    for kind, known in (("passes", PASSES), ("backends", BACKENDS)):
        found = {
            name: owner.partition(" ")[0]
            for (what, name), owner in owners.items()
            if what == kind and owner.startswith(OURS)
        }
        assert found.items() <= known.items()
        installed = set(found.values())
        assert found == {name: home for name, home in known.items() if home in installed}
