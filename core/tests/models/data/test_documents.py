"""JSON that somebody else may have written: read strictly, or refused with the reason."""

from __future__ import annotations

import json
import math

import pytest

from narrowpass_ir.data.documents import parse_json

HARD = {
    "an object that is nested": (b'{"a":' * 200 + b"1" + b"}" * 200, "nested too deep"),
    "a list that is nested": (b"[" * 100_000 + b"]" * 100_000, "nested too deep"),
    "a key that stands twice": (b'{"a": 1, "b": {"c": 1, "c": 2}}', "'c' stands twice"),
    "not a number": (b"[NaN]", "NaN is no number"),
    "infinity": (b"[-Infinity]", "Infinity is no number"),
    "a large number": (b"[1e999]", "too large"),
    "many digits": (b"9" * 10_000, "digits"),
    "half of a pair": (b'{"a": "\\ud800"}', "not Unicode"),
    "a key of half a pair": (b'{"\\udfff": 1}', "not Unicode"),
    "another encoding": (b"\xff\xfe{", "utf-8"),
    "nothing": (b"", "Expecting value"),
    "half of it": (b'{"a": [1, 2', "Expecting"),
}


@pytest.mark.parametrize("name", HARD)
def test_what_is_refused(name):
    data, message = HARD[name]
    with pytest.raises(ValueError, match=message):
        parse_json(data)


@pytest.mark.parametrize(
    "value", [None, True, 0, -(2**70), 1.5, "\u00fc\U0001f600", [], {}, {"a": [{"b": [1, "2"]}]}]
)
def test_what_is_written_is_read(value):
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False).encode()) == value


def test_numbers_that_python_writes():
    found = parse_json("[NaN, Infinity, -Infinity, 1e999]", infinite=True)
    assert math.isnan(found[0])
    assert found[1:] == [math.inf, -math.inf, math.inf]


def test_a_hundred_levels_are_enough():
    assert parse_json("[" * 100 + "]" * 100)


def test_a_key_that_stands_twice_among_many():
    """Keys are looked up, and not compared with all before them: that would take minutes."""
    pairs = [f'"{index}": 0' for index in range(300_000)]
    with pytest.raises(ValueError, match="'299999' stands twice"):
        parse_json("{" + ", ".join([*pairs, pairs[-1]]) + "}")
