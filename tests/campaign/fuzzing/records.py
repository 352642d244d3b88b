"""Files in the cache that plugins parse: calibrations, measured times, notes of sessions.

Other users' files are not read (`SECURITY.md`). What cannot be read is ignored, and written anew.
"""

from __future__ import annotations

import io
import json
import os
import random
import sqlite3
from typing import Any
from unittest import mock

import numpy as np

from fuzzing.growth import grown_document
from fuzzing.mutation import NUMBERS
from fuzzing.structure import TEXTS, Change, changed_document
from fuzzing.target import Target
from narrowpass.errors import NarrowpassError

_KEY = "a" * 16


def _archive(header: bytes, arrays: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    np.savez(file, header=np.frombuffer(header, np.uint8), **arrays)
    return file.getvalue()


class Calibrations(Target):
    """Ranges, and the state of an interrupted calibration."""

    name = "calibration"
    share = 15

    def seeds(self) -> list[bytes]:
        from narrowpass import Histogram
        from narrowpass_int8_sym.calibration.cache import CalibrationCache, PartialCalibration
        from narrowpass_int8_sym.calibration.observers import Range

        self.cache = CalibrationCache(self.folder)
        shown = Histogram(-1.0, 2.0, (1, 0, 5, 2))
        ranges = {"x": Range(-1.0, 2.0, shown), "y": Range(0.0, 3.5)}
        extremes, counts = np.array([[-1.0, 1.0], [0.0, 4.0]]), np.arange(64).reshape(2, 32)
        entry = self.cache.entry(_KEY)
        entry.save(ranges, PartialCalibration(("x", "y"), 1, 7, extremes, counts))
        return [entry.path.read_bytes()]

    def changes(self) -> Change:
        return _changed_archive

    def read(self, data: bytes) -> None:
        entry = self.cache.entry(_KEY)
        entry.path.unlink(missing_ok=True)
        entry.path.write_bytes(data)
        entry = self.cache.entry(_KEY)
        if not entry.ranges and entry.partial is None:
            raise NarrowpassError("it is ignored")
        entry.save(entry.ranges, entry.partial)
        if self.cache.entry(_KEY).ranges != entry.ranges:
            raise AssertionError("what was read is written as something else")


def _changed_archive(choice: random.Random, data: bytes) -> bytes:
    """Change the header of an archive, or the type, shape or name of an array of it."""
    with np.load(io.BytesIO(data)) as found:
        header, arrays = found["header"].tobytes(), {n: found[n] for n in found if n != "header"}
    if choice.randrange(4) or not arrays:
        return _archive(changed_document(choice, header), arrays)
    name = choice.choice(list(arrays))
    array = arrays.pop(name)
    kind = choice.choice(("f8", "i8", "f4", "u1", "S3", "U2", "M8[s]", "c16", "?"))
    size = choice.choice((0, 1, array.size, array.size // 2))
    flat = np.resize(array.ravel(), size).astype(kind)
    shape = choice.choice(((size,), (1, size), (size, 1), (2, size // 2), (2, 1, size // 2)))
    if np.prod(shape) == size:
        flat = flat.reshape(shape)
    return _archive(header, {**arrays, choice.choice((name, name, "x", "header.npy")): flat})


class Times(Target):
    """The database of measured times: its bytes, its rows and its schema."""

    name = "tuning"
    share = 15

    def seeds(self) -> list[bytes]:
        from narrowpass_auto.measure.database import Database

        self.path = self.folder / "tuning.sqlite"
        database = Database(self.path)
        for index in range(20):
            database.add("a processor", f"kernel {index}", (1e-3 * index, 0.5))
        database.close()
        return [self.path.read_bytes()]

    def changes(self) -> Change:
        return _changed_database

    def read(self, data: bytes) -> None:
        from narrowpass_auto.measure.database import Database

        for end in ("", "-journal", "-wal", "-shm"):
            self.path.with_name(self.path.name + end).unlink(missing_ok=True)
        self.path.write_bytes(data)
        database = Database(self.path)
        try:
            found = [database.find("a processor", f"kernel {index}") for index in (3, 19)]
            database.add("a processor", "kernel 3", (2.0,))
            for entry in database.entries():
                json.dumps((entry.processor, entry.key, entry.what, entry.seconds, entry.created))
        finally:
            database.close()
        if None in found:
            raise NarrowpassError("it is measured again")


def _changed_database(choice: random.Random, data: bytes) -> bytes:
    """Change rows or the schema of a database.

    Raises:
        sqlite3.Error: the bytes are no database.
    """
    connection = sqlite3.connect(":memory:")
    try:
        connection.deserialize(data)
        for _ in range(choice.choice((1, 1, 2, 4))):
            kind = choice.randrange(8)
            column = choice.choice(("processor", "key", "what", "seconds", "created"))
            rows = choice.choice(("1", "rowid % 2", "rowid = 4"))
            if kind == 0:
                version = choice.choice((0, 1, 2, -1, 2**31 - 1))
                connection.execute(f"PRAGMA user_version = {version}")
            elif kind == 1:
                statement = choice.choice(
                    (
                        f"ALTER TABLE times RENAME COLUMN {column} TO other",
                        "ALTER TABLE times RENAME TO other",
                        "ALTER TABLE times ADD COLUMN more DEFAULT 3",
                        "DROP TABLE times",
                        "CREATE TRIGGER t AFTER INSERT ON times BEGIN DELETE FROM times; END",
                        "CREATE VIEW v AS SELECT * FROM v",
                    )
                )
                connection.execute(statement)
            else:
                value: Any = choice.choice((None, 0.5, b"\xff\xfe", *_SECONDS, *TEXTS, *NUMBERS))
                if isinstance(value, int):
                    value = min(value, 2**63 - 1)
                query = f"UPDATE OR IGNORE times SET {column} = ? WHERE {rows}"
                connection.execute(query, (value,))
        connection.commit()
        return connection.serialize()
    except sqlite3.Error:
        return data
    finally:
        connection.close()


_SECONDS = ("[]", "[1]", "[NaN]", "[-1.0]", "[[1]]", "null", "[" * 2000, "[1e999]", "[true]", "5")


class Exported(Target):
    """Measured times as a document, which ``narrowpass tune import`` adds to the database."""

    name = "times"
    share = 60
    grow = staticmethod(grown_document)

    def seeds(self) -> list[bytes]:
        row = {"processor": "p", "key": "k", "what": "w", "seconds": [0.5, 0.0], "created": 1.5}
        document = {"format": "narrowpass-tuning-1", "times": [row, {**row, "key": "l"}]}
        return [json.dumps(document).encode()]

    def changes(self) -> Change:
        return changed_document

    def read(self, data: bytes) -> None:
        from narrowpass_auto.command import import_

        path = self.folder / "times.json"
        path.write_bytes(data)
        (self.folder / "tuning.sqlite").unlink(missing_ok=True)
        with mock.patch.dict(os.environ, NARROWPASS_CACHE_DIR=str(self.folder)):
            _quietly(import_.callback, path)


def _quietly(function: Any, *arguments: object) -> None:
    with mock.patch("click.echo"):
        function(*arguments)


class Notes(Target):
    """Notes about the models of sessions."""

    name = "note"
    share = 30
    grow = staticmethod(grown_document)

    def seeds(self) -> list[bytes]:
        from narrowpass_onnxruntime.session.metadata import Interface, ModelMetadata, NodeArg
        from narrowpass_onnxruntime.session.store import Note, Store

        known = Interface(
            inputs=(NodeArg("x", "tensor(float)", [1, "N", None]),),
            outputs=(NodeArg("y", "tensor(float)", []),),
            overridable=(NodeArg("w", "tensor(float)", [3]),),
            metadata=ModelMetadata(custom_metadata_map={"a": "b"}),
            classes={"y": ("cat", 3)},
            initializers=("w",),
            denotations={"x": ("BATCH", "")},
        )
        self.store = Store(self.folder, "", "identity")
        self.other = Store(self.folder, "", "another identity")
        self.written = Note(known, ("w.bin",))
        self.other.write_note(self.written)
        (other,) = self.folder.glob("*.json")
        self.store.write_note(self.written)
        (self.path,) = set(self.folder.glob("*.json")) - {other}
        return [self.path.read_bytes()]

    def changes(self) -> Change:
        return changed_document

    def read(self, data: bytes) -> None:
        self.path.unlink(missing_ok=True)
        self.path.write_bytes(data)
        note = self.store.note()
        self.other.write_note(self.written)  # looks at all notes
        if note is None:
            raise NarrowpassError("it is written again")
        for arg in (*note.interface.inputs, *note.interface.outputs, *note.interface.overridable):
            texts = all(isinstance(text, str) for text in (arg.name, arg.type))
            if not texts or not all(isinstance(dim, int | str | None) for dim in arg.shape):
                raise AssertionError(f"an input or output is {vars(arg)}")
        if not all(isinstance(path, str) for path in note.external):
            raise AssertionError(f"paths are {note.external}")
