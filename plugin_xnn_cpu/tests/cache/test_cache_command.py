"""The command ``narrowpass cache`` lists, verifies and deletes what lies in the folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from cache_kit import INPUT
from click.testing import CliRunner

from narrowpass.errors import UsageError
from narrowpass_xnn_cpu.command import cache

pytestmark = pytest.mark.anywhere


@pytest.fixture
def folder(tmp_path, network_path, load):
    """The cache of a small network."""
    with load() as program:
        program.run({"x": INPUT})
    return tmp_path / "cache"


def call(*arguments, code=0):
    done = CliRunner().invoke(cache, list(map(str, arguments)))
    assert done.exit_code == code, done.output
    return done.output


def packed(folder):
    """The file of packed weights."""
    (path,) = folder.glob("*.weights")
    return path


def test_the_list_names_all_files_with_their_sizes(folder):
    document = json.loads(call("list", "--cache-dir", folder, "--json"))
    assert document["folder"] == str(folder)
    rows = {row["path"]: row for row in document["files"]}
    for path, row in rows.items():
        assert row["bytes"] == Path(path).stat().st_size
    row = rows[str(packed(folder))]
    assert row["blocks"] > 0
    assert row["problem"] is None
    text = call("list", "--cache-dir", folder)
    assert f"{row['blocks']} blocks" in text
    assert text.splitlines()[-1] == (
        f"{len(rows)} files, {sum(r['bytes'] for r in rows.values()) / 1e6:.1f} MB in {folder}"
    )


def test_the_folder_is_that_of_the_environment(folder, monkeypatch):
    monkeypatch.setenv("NARROWPASS_CACHE_DIR", str(folder))
    assert json.loads(call("list", "--json")) == json.loads(
        call("list", "--cache-dir", folder, "--json")
    )


def test_damage_is_found_and_is_an_exit_code(folder):
    path = packed(folder)
    assert f"in {folder}" in call("verify", "--cache-dir", folder)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    assert str(path.stem)[:16] in call("verify", "--cache-dir", folder, code=1)
    document = json.loads(call("verify", "--cache-dir", folder, "--json", code=1))
    (row,) = [row for row in document["files"] if row["path"] == str(path)]
    assert row["problem"]
    call("list", "--cache-dir", folder)  # reads no blocks


def test_files_are_deleted_until_they_fit(folder, load):
    kept = packed(folder)
    document = json.loads(call("prune", "--max-size", "1GB", "--cache-dir", folder, "--json"))
    assert (document["folder"], document["files"]) == (str(folder), [])
    assert call("prune", "--max-size", "1GB", "--cache-dir", folder) == "deleted 0 files (0.0 MB)\n"
    with load() as program:
        wanted = program.run({"x": INPUT})["y"]
        text = call("prune", "--max-size", "0", "--cache-dir", folder)
        assert not kept.exists()
        assert text.startswith("deleted ")
        np.testing.assert_array_equal(program.run({"x": INPUT})["y"], wanted)


def test_a_size_that_is_none(folder):
    done = CliRunner().invoke(cache, ["prune", "--max-size", "much", "--cache-dir", str(folder)])
    assert isinstance(done.exception, UsageError | SystemExit)
    assert packed(folder).exists()
