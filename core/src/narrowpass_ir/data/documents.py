"""Reading JSON that somebody else may have written."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

_DEEPEST = 100
"""Nested objects and lists. Nothing here needs ten; Python's own limit is not a fixed one."""


def parse_json(data: bytes | str, *, infinite: bool = False) -> Any:
    """Parse a JSON document, strictly.

    Args:
        data: the document; bytes are UTF-8.
        infinite: whether numbers may be NaN or infinite, as Python writes them.

    Returns:
        What `json.loads` returns.

    Raises:
        ValueError: it is not JSON; a key stands twice in an object; a number is NaN, infinite or of
            thousands of digits; a text is not Unicode (half of a surrogate pair); or it is nested
            more than a hundred deep. The message says which.
    """
    constant = float if infinite else _refuse
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
        value = json.loads(text, object_pairs_hook=_distinct, parse_constant=constant)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    _check(value, infinite)
    return value


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {twice!r} stands twice in an object")
    return found


def _refuse(name: str) -> float:
    raise ValueError(f"{name} is no number of JSON")


def _check(value: Any, infinite: bool) -> None:
    """Look at all texts and numbers, and at how deep they are."""
    level, depth = [value], 0
    while level:
        if depth > _DEEPEST:
            raise ValueError("it is nested too deep")
        inner: list[Any] = []
        for item in level:
            if isinstance(item, str):
                _check_text(item)
            elif isinstance(item, float) and not infinite and math.isinf(item):
                raise ValueError("a number is too large")
            elif isinstance(item, list):
                inner += item
            elif isinstance(item, dict):
                inner += item
                inner += item.values()
        level, depth = inner, depth + 1


def _check_text(text: str) -> None:
    if text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"a text is not Unicode: {text[:40]!r}") from None
