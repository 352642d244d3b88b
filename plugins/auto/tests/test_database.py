"""Times that are kept between processes."""

import io
import os
import sqlite3
import subprocess
import sys
from importlib.metadata import version

import pytest
import trust_kit

from narrowpass.errors import DataError, OutputError
from narrowpass_auto.measure import database as measure_database
from narrowpass_auto.measure.database import Database, Entry, default_path, processor_text


def test_the_first_time_counts(tmp_path):
    path = tmp_path / "folder" / "times.sqlite"
    database = Database(path)
    assert database.find("p", "kernel") is None
    assert database.add("p", "kernel", (1.0, 0.5)) == (1.0, 0.5)
    assert database.add("p", "kernel", (2.0, 0.5)) == (1.0, 0.5)
    database.close()
    again = Database(path)
    assert again.find("p", "kernel") == (1.0, 0.5)
    assert again.find("q", "kernel") is None
    again.close()


def test_a_file_that_is_read_does_not_change(tmp_path):
    path = tmp_path / "times.sqlite"
    for _ in range(2):
        database = Database(path)
        database.add("p", "kernel", (1.0,))
        database.close()
    before = path.read_bytes()
    database = Database(path)
    assert database.find("p", "kernel") == (1.0,)
    assert database.add("p", "kernel", (2.0,)) == (1.0,)
    database.close()
    assert path.read_bytes() == before


def test_two_processes_at_once(tmp_path):
    path = tmp_path / "times.sqlite"
    program = (
        "import sys; from pathlib import Path\n"
        "from narrowpass_auto.measure.database import Database\n"
        "database = Database(Path(sys.argv[1]))\n"
        "for number in range(200):\n"
        "    database.add('p', f'{sys.argv[2]} {number}', (1.0,))\n"
        "    database.add('p', f'both {number}', (1.0,))\n"
    )
    command = [sys.executable, "-c", program, str(path)]
    started = [subprocess.Popen([*command, name]) for name in "ab"]
    assert [process.wait(120) for process in started] == [0, 0]
    database = Database(path)
    assert sum(1 for _ in database.entries()) == 600
    database.close()


@pytest.mark.parametrize(
    "content", [b"no database at all" * 100, b"SQLite format 3\0" + b"\xff" * 900]
)
def test_damaged_file(tmp_path, caplog, content):
    path = tmp_path / "times.sqlite"
    path.write_bytes(content)
    database = Database(path)
    assert database.add("p", "kernel", (1.0,)) == (1.0,)
    assert database.find("p", "kernel") == (1.0,)
    assert "times are not kept" in caplog.text
    database.close()


def test_file_of_a_later_version(tmp_path, caplog):
    path = tmp_path / "times.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    database = Database(path)
    assert "format 99" in caplog.text
    assert database.add("p", "kernel", (1.0,)) == (1.0,)
    database.close()


def test_two_formats_in_turns(tmp_path, caplog, monkeypatch):
    """Each version finds its times again, and leaves the other's alone."""
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path))
    for turn in range(2):
        for number in (1, 2):
            with monkeypatch.context() as patch:
                patch.setattr(measure_database, "_FORMAT", number)
                database = Database(default_path())
                found = database.find("p", "kernel")
                assert found == (None if turn == 0 else (float(number),))
                database.add("p", "kernel", (float(number),))
                database.close()
    assert caplog.text == ""


@pytest.mark.parametrize("text", ["[NaN]", "[-1]", "{}", "[]", "oops", '["1"]'])
def test_times_that_are_none(tmp_path, text):
    path = tmp_path / "times.sqlite"
    database = Database(path)
    database.add("p", "kernel", (1.0,))
    with database._connection as connection:
        connection.execute("UPDATE times SET seconds = ?", (text,))
    with pytest.raises(DataError, match="tune prune"):
        list(database.entries())
    assert database.find("p", "kernel") is None
    database.close()


@pytest.mark.parametrize(
    ("column", "value"),
    [("seconds", None), ("seconds", 5), ("seconds", b"[1]"), ("seconds", "[" * 99_999)]
    + [(column, b"\xff") for column in ("processor", "what", "created")]
    + [("created", "never"), ("created", 1e300), ("created", -1)],
)
def test_columns_of_other_types(tmp_path, column, value):
    """SQLite keeps any type in any column."""
    database = Database(tmp_path / "times.sqlite")
    database.add("p", "kernel", (1.0,))
    with database._connection as connection:
        connection.execute(f"UPDATE times SET {column} = ?", (value,))
    with pytest.raises(DataError, match="tune prune"):
        list(database.entries())
    if column == "seconds":
        assert database.find("p", "kernel") is None
    database.close()


def test_folder_that_cannot_be_written(caplog):
    from pathlib import Path

    database = Database(Path("/dev/null/folder/times.sqlite"))
    assert database.add("p", "kernel", (1.0,)) == (1.0,)
    assert "times are not kept" in caplog.text
    database.close()


def test_insert_keeps_what_is_there(tmp_path):
    database = Database(tmp_path / "times.sqlite")
    database.add("p", "kernel", (1.0,))
    (mine,) = database.entries()
    other = Entry(mine.processor, mine.key, mine.what, (9.0,), 0.0)
    assert database.insert([other, Entry("q", "k", "w", (3.0,), 0.0)]) == 1
    assert database.find("p", "kernel") == (1.0,)
    assert database.delete(["q"]) == 1
    database.close()
    with pytest.raises((OutputError, sqlite3.ProgrammingError)):
        database.delete(["p"])


def test_place_is_that_of_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(tmp_path))
    assert default_path() == tmp_path / "tuning.sqlite"


class Backend:
    """Some backend, of no distribution."""

    def __init__(self, **details):
        self._details = details

    def details(self):
        return self._details

    def __str__(self):
        return "mine{threads=2}"


def test_times_belong_to_processor_backend_version_and_threads(monkeypatch):
    from narrowpass_reference import ReferenceBackend

    monkeypatch.setattr(measure_database, "usable_processors", lambda: 3)
    monkeypatch.setattr(measure_database, "_processor_name", lambda: "Quick 9000")
    versions = {"narrowpass": version("narrowpass"), "reference": version("narrowpass-reference")}
    assert processor_text(Backend(isa="avx2", XNNPACK="1")) == (
        f"Quick 9000; mine{{threads=2}} {versions['narrowpass']}; XNNPACK 1, isa avx2; 3 threads"
    )
    assert processor_text(Backend()).endswith("; no details; 3 threads")
    found = processor_text(ReferenceBackend())
    assert found.startswith(f"Quick 9000; reference {versions['reference']}; ")


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        (
            "processor\t: 0\nmodel name\t: Quick 9000 : Turbo\nmodel name\t: Other\n",
            "Quick 9000 : Turbo",
        ),
        ("processor\t: 0\nBogoMIPS\t: 48.00\n", "arm"),  # Linux on ARM names none
        (None, "arm"),
        (None, "aarch64"),
    ],
)
def test_the_processor_is_named_by_the_system(monkeypatch, lines, name):
    def read(path, **options):
        assert str(path) == "/proc/cpuinfo"
        if lines is None:
            raise FileNotFoundError(path)
        return io.StringIO(lines)

    monkeypatch.setattr(measure_database.Path, "open", read)
    monkeypatch.setattr("platform.processor", lambda: "" if name == "aarch64" else "arm")
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert measure_database._processor_name() == name


def test_without_a_file_times_are_kept_in_memory():
    database = Database(None)
    database.add("p", "kernel", (1.0,))
    assert [entry.what for entry in database.entries()] == ["kernel"]
    database.close()
    again = Database(None)
    assert list(again.entries()) == []
    again.close()


# What others may have written


def _beside(path, end, mode=0o600):
    file = path.with_name(path.name + end)
    file.touch()
    file.chmod(mode)
    return file


DISTRUSTED = trust_kit.DISTRUSTED | {
    "a sticky folder": (lambda path: path.parent.chmod(0o1777), *trust_kit.OTHERS),
    "another's journal": (
        lambda path: trust_kit.other_owner(_beside(path, "-journal")), "12345", "delete"
    ),
    "a log for all": (lambda path: _beside(path, "-wal", 0o666), "times.sqlite-wal", "chmod go-w"),
    "a link": (trust_kit.linked, "is not a regular file", "delete it"),
}  # fmt: skip


@pytest.mark.parametrize("name", DISTRUSTED)
def test_times_that_others_may_have_written_are_not_used(tmp_path, caplog, name):
    change, reason, remedy = DISTRUSTED[name]
    path = tmp_path / "folder" / "times.sqlite"
    database = Database(path)
    database.add("p", "kernel", (1.0,))
    database.close()
    change(path)
    before = path.read_bytes()
    database = Database(path)
    assert database.find("p", "kernel") is None
    assert database.add("p", "kernel", (2.0,)) == (2.0,)  # of this process
    database.close()
    assert path.read_bytes() == before
    (record,) = caplog.records
    assert "not read, and not kept" in record.message
    assert reason in record.message
    assert remedy in record.message


def test_whatever_the_umask_times_are_used_again(tmp_path, caplog):
    path = tmp_path / "above" / "folder" / "times.sqlite"
    before = os.umask(0)
    try:
        for _ in range(2):
            database = Database(path)
            assert database.add("p", "kernel", (1.0,)) == (1.0,)
            database.close()
    finally:
        os.umask(before)
    assert caplog.text == ""
    assert path.stat().st_mode & 0o022 == 0
    for folder in (path.parent, path.parent.parent):
        assert folder.stat().st_mode & 0o022 == 0
