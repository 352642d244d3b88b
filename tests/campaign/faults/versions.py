"""A process of one version of narrowpass: ``python -m faults.versions NUMBER ROUNDS FOLDER``.

Version 0 is this one. Of the others all formats on disk have other numbers, the packing code
another build, plans follow from other code, and files are recognized otherwise. Each round loads a
bundle with its weights cached, creates a session of the plugin for onnxruntime, and looks up a
measured time. Prints a line of JSON for each round: what was done anew.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

import narrowpass
from faults.models import X, expected


def become(number: int) -> None:
    """Turn the code of this process into that of another version."""
    import narrowpass_auto.measure.database as times
    import narrowpass_onnxruntime.session.source as source
    import narrowpass_onnxruntime.session.store as store
    import narrowpass_planning.program.stored_methods as methods
    import narrowpass_planning.weights.file as packed
    import narrowpass_planning.weights.folder as folder
    from narrowpass_planning.stored import file as stored
    from narrowpass_xnn_cpu.native.packer import XnnPacker

    packed.VERSION += number
    folder.VERSION += number
    stored.VERSION += number
    times._FORMAT += number % 10  # 0 is that of a new file
    store._VERSION = f"{store._VERSION}+{number}"
    build, code_of, status_of = XnnPacker.build, methods.code_of, source.status_of
    # mypy refuses a plain assignment to a method, and to a function of another signature.
    setattr(XnnPacker, "build", lambda self: f"{number}{build(self)}")  # noqa: B010
    setattr(methods, "code_of", lambda names: (*code_of(names), number))  # noqa: B010
    source.status_of = store.status_of = lambda path: f"{number} {status_of(path)}"


def once(folder: Path) -> dict[str, Any]:
    """Do all of it once."""
    from narrowpass_auto.measure.database import Database, default_path
    from narrowpass_onnxruntime import InferenceSession
    from narrowpass_planning.program import compiled_graph

    cache, right = folder / "cache", expected(0)
    close = {"rtol": 0, "atol": 1e-4 * np.abs(right).max()}
    planned = mock.Mock(wraps=compiled_graph.compile_graph)
    with (
        mock.patch("narrowpass_planning.program.method.compile_graph", planned),
        narrowpass.load(folder / "m.narrow", "xnn-cpu", threads=1, cache_dir=cache) as program,
    ):
        np.testing.assert_allclose(program.run({"x": X})["y"], right, **close)
        packs = program.stats()["weights"]["packs"]
    building = mock.Mock(wraps=narrowpass.build)
    given = [("NarrowpassExecutionProvider", {"cache_dir": str(cache), "threads": "1"})]
    with mock.patch("narrowpass.build", building):
        session = InferenceSession(folder / "m.onnx", providers=given)
        np.testing.assert_allclose(session.run(None, {"x": X})[0], right, **close)
    database = Database(cache / default_path().name)
    measured = database.find("p", "kernel") is None
    database.add("p", "kernel", (1.0,))
    database.close()
    return {
        "packs": packs,
        "planned": planned.call_count,
        "built": building.call_count,
        "measured": measured,
    }


def main() -> None:
    """Do so many rounds."""
    number, rounds, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    if number:
        become(number)
    for _ in range(rounds):
        sys.stdout.write(json.dumps(once(folder)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
