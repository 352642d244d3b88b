"""Files of plugins: measured times, calibrations, and the bundles of sessions."""

from __future__ import annotations

import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from faults.models import X, expected, model
from narrowpass import save_model
from narrowpass.errors import NarrowpassError


class Measuring:
    """Times are added to the database of `auto`; those that were there stay."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "tuning.sqlite"
        self.act("old")

    def act(self, name: str = "new") -> str:
        """Add three times; what counts is what is kept, or what was measured."""
        from narrowpass_auto.measure.database import Database

        database = Database(self.path)
        for number in range(3):
            found = database.add("p", f"{name} {number}", (float(number),))
            if found != (float(number),):
                return f"another time: {found}"
        database.close()
        return "done"

    def look(self, outcome: str) -> str:
        """Look for the old times, and add the new ones."""
        del outcome
        with sqlite3.connect(self.path) as connection:
            (state,) = connection.execute("PRAGMA integrity_check").fetchone()
            rows = connection.execute("SELECT what, seconds FROM times").fetchall()
        connection.close()
        if state != "ok":
            return f"damaged: {state}"
        if not {(f"old {n}", f"[{float(n)}]") for n in range(3)} <= set(rows):
            return "old times are lost"
        if self.act() != "done":
            return "no new times any more"
        with sqlite3.connect(self.path) as connection:
            count = connection.execute("SELECT COUNT(*) FROM times").fetchone()[0]
            connection.execute("DELETE FROM times WHERE what LIKE 'new%'")
        connection.close()
        left = sorted(path.name for path in self.path.parent.iterdir())
        if count != 6 or left != [self.path.name]:
            return f"{count} times in {left}"
        return "whole"


class Calibrating:
    """Ranges are added to the file of a calibration; those that were there stay."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "calibration"
        self.save("old")

    def save(self, name: str) -> None:
        """Add one range."""
        from narrowpass_int8_sym.calibration import CalibrationCache, Range

        CalibrationCache(self.folder).entry("key").save({name: Range(-1, 2.5)}, None)

    def act(self) -> str:
        """Add one."""
        self.save("new")
        return "done"

    def look(self, outcome: str) -> str:
        """Look for the old one, and add the new one; what is left goes when it is an hour old."""
        from narrowpass_int8_sym.calibration import CalibrationCache

        del outcome
        found = CalibrationCache(self.folder).entry("key").ranges
        for path in self.folder.glob(".*"):
            os.utime(path, (0, 0))
        self.save("new")
        after = CalibrationCache(self.folder).entry("key").ranges
        left = [path.name for path in self.folder.iterdir()]
        if set(after) != {"old", "new"} or len(left) > 1:
            # Where the file could not be read it is written anew, with what this run has found.
            return "the old one is lost" if "old" not in found else f"{sorted(after)} in {left}"
        shutil.rmtree(self.folder)
        self.save("old")
        return "whole"


class Sessions:
    """A session is created from a model, and its bundle is kept."""

    def __init__(self, folder: Path) -> None:
        # Here, since a disk that fails within the import is none of the session's.
        from onnxruntime.capi.onnxruntime_pybind11_state import Fail

        self.failure: type[Exception] = Fail
        self.model, self.cache = folder / "m.onnx", folder / "cache"
        save_model(model(0), self.model)
        self.right = expected(0)
        self.open(folder / "ready")
        self.open(folder / "ready")

    def open(self, cache: Path) -> Any:
        """Create a session, and run it."""
        from narrowpass_onnxruntime import InferenceSession

        given = [("NarrowpassExecutionProvider", {"cache_dir": str(cache), "threads": "1"})]
        session = InferenceSession(self.model, providers=given)
        (result,) = session.run(None, {"x": X})
        # 96 and 256 terms, accumulated in another order than numpy's.
        if not np.allclose(result, self.right, rtol=0, atol=1e-4 * np.abs(self.right).max()):
            raise AssertionError("a wrong result")
        return session

    def act(self) -> str:
        """Create one, and run it."""
        try:
            self.open(self.cache)
        except (NarrowpassError, self.failure) as error:
            return "a clear error" if len(str(error)) > 20 else f"an unclear error: {error!r}"
        return "done"

    def look(self, outcome: str) -> str:
        """Create two: the second builds nothing. What is left goes when it is an hour old."""
        del outcome
        for path in self.cache.rglob(".narrowpass-*.tmp"):
            os.utime(path, (0, 0))
        self.open(self.cache)
        with mock.patch("narrowpass.build", None):
            self.open(self.cache)
        names = {path.name for path in self.cache.rglob("*")}
        odd = sorted(name for name in names if ".tmp" in name or ".old-" in name)
        self.clean()
        return f"left for ever: {odd}" if odd else "right, and kept again"

    def clean(self) -> None:
        """Empty the folder for the next child."""
        shutil.rmtree(self.cache)


class Reopening(Sessions):
    """The bundle is there: it is read."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cache = folder / "ready"

    def clean(self) -> None:
        """Leave what is there."""
