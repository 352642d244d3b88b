"""What accuracy is measured on, and what methods are calibrated with."""

from __future__ import annotations

import importlib
import inspect
from pydoc_data.topics import topics
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
CONTEXT = 512
"""Tokens of a context."""

DOCUMENTED = (
    *("argparse", "asyncio", "collections", "ctypes", "datetime", "decimal", "difflib", "email"),
    *("fractions", "functools", "http.client", "inspect", "itertools", "json", "logging", "os"),
    *("multiprocessing", "pathlib", "pickle", "random", "re", "socket", "sqlite3", "statistics"),
    *("string", "subprocess", "tarfile", "tempfile", "threading", "tkinter", "turtle", "typing"),
    *("unittest", "urllib.request", "uuid", "weakref", "xml.dom", "zipfile"),
)
"""Modules whose docstrings are calibrated with."""


def contexts(ids: Array, tokens: int) -> list[Array]:
    """Return ids [1, 512] of enough contexts for so many predicted tokens."""
    count = min(-(-tokens // (CONTEXT - 1)), len(ids) // CONTEXT)
    return [ids[None, n * CONTEXT : (n + 1) * CONTEXT] for n in range(count)]


def docstrings() -> str:
    """Return what the standard library says of itself."""
    parts = []
    for name in DOCUMENTED:
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        for item in (module, *(value for _, value in sorted(vars(module).items()))):
            members = [item, *vars(item).values()] if inspect.isclass(item) else [item]
            parts += [text for each in members if (text := inspect.getdoc(each)) and len(text) > 80]
    return "\n\n".join(dict.fromkeys(parts))


def topics_text() -> str:
    """Return the text that accuracy is measured on."""
    return "\n\n".join(topics[key] for key in sorted(topics))
