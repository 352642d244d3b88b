"""Pipelines of a sweep, from text with alternatives."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence

from narrowpass.errors import UsageError
from narrowpass.framework.options import quote

_CHOICE = re.compile(r"<([^<>]*)>")


def expand(text: str) -> list[str]:
    """Return the pipelines of a text, where ``<a|b>`` stands for one of several texts.

    ``fold,int8-sym{calibrator=<l2|entropy>}`` is two pipelines, with two such places four.

    Raises:
        UsageError: a ``<`` without its ``>``.
    """
    parts = _CHOICE.split(text)
    if any("<" in part or ">" in part for part in parts[::2]):
        raise UsageError(f"--grid {text}: write alternatives as <a|b>")
    choices = [[part] if index % 2 == 0 else part.split("|") for index, part in enumerate(parts)]
    return ["".join(chosen).strip(",") for chosen in itertools.product(*choices)]


def pipelines(grid: Sequence[str], limits: Sequence[str]) -> list[str]:
    """Return the pipelines of a sweep, each once.

    Args:
        grid: texts with alternatives; empty for one pipeline without passes.
        limits: on the error, such as ``rel:1e-2``: each pipeline is followed by ``auto`` with each.
            Empty for none.
    """
    found = [pipeline for text in grid or [""] for pipeline in expand(text)]
    if limits:
        narrowing = [f"auto{{max-error={quote(limit)}}}" for limit in limits]
        found = [f"{text},{last}".strip(",") for text in found for last in narrowing]
    return list(dict.fromkeys(found))
