"""Ranges that other users may have written are not used, and found again."""

from __future__ import annotations

import logging
import os

import pytest
from trust_kit import DISTRUSTED, linked

from narrowpass_int8_sym.calibration import CalibrationCache, Range

RANGES = {"a": Range(-1.0, 2.5)}


@pytest.fixture
def file(tmp_path):
    """Return the file of a calibration."""
    entry = CalibrationCache(tmp_path / "cache").entry("key")
    entry.save(RANGES, None)
    return entry.path


@pytest.mark.parametrize("name", DISTRUSTED)
def test_ranges_that_others_may_have_written(file, caplog, name):
    change, reason, remedy = DISTRUSTED[name]
    change(file)
    before = file.read_bytes()
    with caplog.at_level(logging.WARNING, "narrowpass.int8-sym"):
        entry = CalibrationCache(file.parent).entry("key")
        assert entry.ranges == {}
        entry.save({"a": Range(0.0, 1.0)}, None)
    (record,) = caplog.records  # once
    assert "not read, and not kept" in record.message
    assert reason in record.message
    assert remedy in record.message
    assert file.read_bytes() == before
    assert list(file.parent.iterdir()) == [file]


def test_a_new_file_in_a_folder_of_others(file, caplog):
    file.parent.chmod(0o777)
    CalibrationCache(file.parent).entry("other").save(RANGES, None)
    assert "chmod go-w" in caplog.text
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_with_the_sticky_bit(file, caplog):
    """Such as /tmp: others cannot replace the file."""
    file.parent.chmod(0o1777)
    assert CalibrationCache(file.parent).entry("key").ranges == RANGES
    assert caplog.text == ""


def test_a_file_that_others_take_over_meanwhile(file, caplog):
    entry = CalibrationCache(file.parent).entry("key")
    file.chmod(0o666)
    before = file.read_bytes()
    entry.save({"a": Range(0.0, 1.0)}, None)
    assert "chmod go-w" in caplog.text
    assert file.read_bytes() == before


def test_links_are_not_followed(file, caplog):
    linked(file)
    assert CalibrationCache(file.parent).entry("key").ranges == {}
    assert "cannot be read" in caplog.text


def test_whatever_the_umask_ranges_are_used_again(tmp_path, caplog):
    before = os.umask(0)
    try:
        entry = CalibrationCache(tmp_path / "above" / "cache").entry("key")
        entry.save(RANGES, None)
    finally:
        os.umask(before)
    assert CalibrationCache(tmp_path / "above" / "cache").entry("key").ranges == RANGES
    assert caplog.text == ""
    for path in (entry.path, *list(entry.path.parents)[:2]):
        assert path.stat().st_mode & 0o022 == 0
