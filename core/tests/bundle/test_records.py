"""JSON documents as dataclasses: what is read, and where a message says that it does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import pytest

from narrowpass.bundle.manifest import Matching, UnfitError, read_record, shown


@dataclass(frozen=True)
class Part:
    name: str
    size: int | None


@dataclass(frozen=True)
class Whole:
    parts: tuple[Part, ...]
    by_key: Mapping[str, tuple[int, ...]]
    hash: Annotated[str, Matching("[0-9a-f]{4}", "a hash")]
    either: str | int | tuple[str, ...]


def document(**changes):
    found = {
        "parts": [{"name": "a", "size": 3}, {"name": "b", "size": None}],
        "by_key": {"k": [1, 2]},
        "hash": "00ff",
        "either": ["x"],
    }
    return found | changes


def test_a_document():
    assert read_record(Whole, document()) == Whole(
        (Part("a", 3), Part("b", None)), {"k": (1, 2)}, "00ff", ("x",)
    )
    assert read_record(Whole, document(either="x")).either == "x"
    assert read_record(Whole, document(either=7)).either == 7


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"parts": {}}, ".parts is not as the format says: {}"),
        ({"parts": [{"name": "a", "size": 1}, 5]}, ".parts[1] is not as the format says: 5"),
        ({"parts": [{"name": 1, "size": 1}]}, ".parts[0].name is not as the format says: 1"),
        ({"parts": [{"name": "a"}]}, ".parts[0] lacks the field 'size'"),
        ({"parts": [{"name": "a", "size": -1}]}, ".parts[0].size is not as the format says: -1"),
        (
            {"parts": [{"name": "a", "size": True}]},
            ".parts[0].size is not as the format says: True",
        ),
        ({"by_key": {"k": [1, "2"]}}, ".by_key['k'][1] is not as the format says: '2'"),
        ({"hash": "00FF"}, ".hash is not a hash: '00FF'"),
        ({"hash": "00ff\n"}, ".hash is not a hash: '00ff\\n'"),
        ({"either": None}, ".either is not as the format says: None"),
        ({"more": 1}, " has an unknown field 'more'"),
    ],
)
def test_what_does_not_fit(changes, said):
    with pytest.raises(UnfitError) as caught:
        read_record(Whole, document(**changes))
    assert f"{caught.value.way}{caught.value}" == said


def test_long_values_are_cut():
    assert shown("a" * 100) == "'" + "a" * 56 + "..."
    assert len(shown("a" * 100)) == 60
