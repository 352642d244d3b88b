"""Passes constructed in Python: values of the wrong type end when the pass is constructed."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from narrowpass import Pass, PassResult
from narrowpass.framework.options import OptionError
from narrowpass_analysis.metrics import Tolerance

if TYPE_CHECKING:
    from nowhere import Unknown


class Mode(enum.Enum):
    FAST = "fast"


@dataclass(frozen=True)
class Many(Pass):
    """Has an option of each type."""

    name = "many"
    kind: Literal["a", "b"] = "a"
    flag: bool = False
    count: int = 1
    share: float = 0.5
    label: str = ""
    names: tuple[str, ...] = ()
    kept: bool | tuple[str, ...] = True
    limit: Tolerance | None = None
    mode: Mode = Mode.FAST
    chooser: str | Callable[[int], int] = "x"
    hook: Callable[[int], int] | None = None

    def run(self, model, ctx):
        return PassResult(model, False)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"kind": "c"}, r"option 'kind' of 'many' takes a\|b, not 'c'"),
        ({"kind": 1}, r"takes a\|b, not 1"),
        ({"flag": 1}, r"takes true\|false, not 1"),
        ({"flag": "true"}, r"takes true\|false"),
        ({"count": "3"}, "takes integer, not '3'"),
        ({"count": 1.5}, "takes integer"),
        ({"count": True}, "takes integer, not True"),
        ({"share": float("nan")}, "takes number, not nan"),
        ({"share": np.float32("inf")}, "takes number"),
        ({"share": None}, "takes number, not None"),
        ({"label": 3}, "takes text, not 3"),
        ({"names": "op:MatMul"}, r"not 'op:MatMul'; pass a tuple: \('op:MatMul',\)"),
        ({"names": (1, 2)}, r"takes \[text, ...\], not \(1, 2\)"),
        ({"kept": "x"}, r"pass a tuple: \('x',\)"),
        ({"limit": "1e-2"}, r"takes METRIC:LIMIT\|none, not '1e-2' \(.* such as rel:1e-2\)"),
        ({"limit": 0.01}, r"takes METRIC:LIMIT\|none, not 0.01"),
        ({"mode": "slow"}, "takes fast, not 'slow'"),
        ({"chooser": 3}, r"takes text\|function, not 3"),
        ({"hook": "f"}, r"takes function\|none, not 'f'"),
    ],
)
def test_wrong_values(values, said):
    with pytest.raises(OptionError, match=said):
        Many(**values)
    with pytest.raises(OptionError, match=said):
        dataclasses.replace(Many(), **values)


@pytest.mark.parametrize(
    ("values", "same"),
    [
        ({"limit": "rel:1e-2"}, {"limit": Tolerance("rel", 1e-2)}),
        ({"names": ["a", "b"]}, {"names": ("a", "b")}),
        ({"mode": "fast"}, {}),
        ({"count": np.int64(3)}, {"count": 3}),
        ({"share": np.float32(0.25)}, {"share": 0.25}),
        ({"share": 2}, {"share": 2.0}),
        ({"kept": ["a"]}, {"kept": ("a",)}),
    ],
)
def test_what_stands_for_a_value_is_taken(values, same):
    assert Many(**values) == Many(**same)
    assert str(Many(**values)).replace("=2}", "=2.0}") == str(Many(**same))


def test_what_only_python_can_pass_is_not_asked():
    Many(hook=lambda n: n, chooser=lambda n: n)


def test_types_that_only_type_checkers_know_are_no_error():
    @dataclass(frozen=True)
    class Strange(Pass):
        name = "strange"
        other: Unknown | None = None
        count: int = 1

        def run(self, model, ctx):
            return PassResult(model, False)

    assert Strange(other=3).other == 3
    with pytest.raises(OptionError, match="takes integer"):
        Strange(count="3")


def test_a_default_may_be_anything():
    @dataclass(frozen=True)
    class Unbounded(Pass):
        name = "unbounded"
        limit: float = float("inf")

        def run(self, model, ctx):
            return PassResult(model, False)

    assert dataclasses.replace(Unbounded()).limit == float("inf")
