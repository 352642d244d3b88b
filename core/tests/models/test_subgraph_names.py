"""Names that are not in use yet."""

from __future__ import annotations

from narrowpass_ir.subgraphs import reserve_name


def test_a_name_in_use_gets_a_number():
    taken = {"a", "a.1", None}
    assert [reserve_name("a", taken), reserve_name("a", taken), reserve_name("b", taken)] == [
        "a.2",
        "a.3",
        "b",
    ]
    assert {"a.2", "a.3", "b"} <= taken
