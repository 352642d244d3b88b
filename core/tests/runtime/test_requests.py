"""What a run is asked for: methods, kept values, outputs, and arrays for results."""

from __future__ import annotations

import numpy as np
import pytest

from narrowpass.errors import DataError, UsageError
from narrowpass.runtime.requests import (
    check_kept,
    check_targets,
    choose_method,
    choose_outputs,
    write_outputs,
)


def test_the_only_method_stands_for_main():
    assert choose_method({"encode": 1}, "main") == ("encode", 1)
    with pytest.raises(UsageError, match="no method 'main'"):
        choose_method({"encode": 1, "decode": 2}, "main")
    with pytest.raises(UsageError, match="by its name"):
        choose_method({"main": 1}, 3)


def test_values_to_keep_are_those_of_a_method():
    check_kept(["h"], {"h", "y"})
    with pytest.raises(UsageError, match="no method has a value 'z' to keep"):
        check_kept(["h", "z"], {"h", "y"})


def test_outputs_are_those_of_the_method_and_kept_values():
    def choose(asked):
        return choose_outputs("main", asked, ("y",), {"y", "h"}, {"y", "h", "g"})

    assert choose(None) == ("y",)
    assert choose(["h", "y"]) == ("h", "y")
    with pytest.raises(UsageError, match="'g' of method 'main' was not kept"):
        choose(["g"])
    with pytest.raises(UsageError, match="has no value 'other'"):
        choose(["other"])


def test_arrays_for_results_lie_apart():
    memory = np.zeros(12, np.float32)
    check_targets("main", {"a": memory[:6], "b": memory[6:]}, ["a", "b"])
    # Even and odd elements: their bytes lie among one another, and none is shared.
    check_targets("main", {"a": memory[::2], "b": memory[1::2]}, ["a", "b"])
    with pytest.raises(UsageError, match="'a' and 'b' overlap"):
        check_targets("main", {"a": memory[:7], "b": memory[6:]}, ["a", "b"])
    with pytest.raises(UsageError, match="has 'c', which this run"):
        check_targets("main", {"c": memory}, ["a", "b"])
    with pytest.raises(UsageError, match="must be a dict"):
        check_targets("main", [memory], ["a", "b"])


def test_what_is_too_hard_to_decide_overlaps(monkeypatch):
    """Whether strided arrays overlap is a Diophantine equation: numpy bounds its work."""
    memory = np.zeros(12, np.float32)

    def too_hard(one, other, max_work):
        assert max_work < 1 << 20
        raise np.exceptions.TooHardError

    monkeypatch.setattr(np, "shares_memory", too_hard)
    with pytest.raises(UsageError, match="overlap"):
        check_targets("main", {"a": memory[::2], "b": memory[1::2]}, ["a", "b"])


def test_results_are_copied_into_arrays_of_the_caller():
    value, target = np.arange(3, dtype=np.float32), np.zeros(3, np.float32)
    written = write_outputs({"y": value}, {"y": target})
    assert written["y"] is target
    assert target.tolist() == [0, 1, 2]
    # It was computed there.
    assert write_outputs({"y": target}, {"y": target})["y"] is target


def test_results_that_are_views_of_the_arrays_are_saved_first():
    memory = np.arange(6, dtype=np.float32)
    first, second = memory[:3], memory[3:]
    # Each result is a view of where the other one is to be written, as where feeds lie there.
    write_outputs({"a": second, "b": first}, {"a": first, "b": second})
    assert memory.tolist() == [3, 4, 5, 0, 1, 2]


def test_results_that_lie_elsewhere_are_not_saved():
    values = {"a": np.ones(3), "b": [np.ones(3)]}
    first, second = np.zeros(3), np.zeros(3)
    with pytest.raises(UsageError, match="'b' is not a tensor"):
        write_outputs(values, {"a": first, "b": second})
    write_outputs({"a": np.ones(3), "c": np.ones(3)}, {"a": first, "c": second})
    assert first.tolist() == second.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (np.zeros(3, np.float64), r"is float32\[3\]"),
        (np.zeros((3, 1), np.float32), r"is float32\[3\]"),
        ([0, 0, 0], r"is float32\[3\]"),
        (np.broadcast_to(np.float32(0), 3), "writeable"),
    ],
)
def test_arrays_that_do_not_fit(target, said):
    with pytest.raises(DataError, match=said):
        write_outputs({"y": np.ones(3, np.float32)}, {"y": target})


def test_a_result_that_is_no_tensor_is_not_written():
    with pytest.raises(UsageError, match="'y' is not a tensor"):
        write_outputs({"y": [np.ones(3)]}, {"y": np.zeros(3)})
