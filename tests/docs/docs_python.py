"""Runs Python blocks of a page, in the environment of the page: `docs_session` starts it.

A line of standard input is a block as JSON, and a line of the answers says what went wrong with
it: nothing where it is empty. Names live on from block to block.
"""

from __future__ import annotations

import doctest
import importlib
import io
import json
import os
import site
import sys
import traceback
from typing import Any

import docs_pages  # beside this file


class _Checker(doctest.OutputChecker):
    """Compares as `docs_pages.same_output` does."""

    def check_output(self, want: str, got: str, optionflags: int) -> bool:
        return super().check_output(want, got, optionflags) or docs_pages.same_output(want, got)


def _run(source: str, page: str, line: int, names: dict[str, Any]) -> str:
    try:
        # Tracebacks have the page's lines.
        exec(compile("\n" * (line - 1) + source, page, "exec"), names)
    except Exception:  # noqa: BLE001  # whatever a block raises is what is wrong with it
        return traceback.format_exc()
    return ""


def _examples(source: str, page: str, line: int, names: dict[str, Any]) -> str:
    parsed = doctest.DocTestParser().get_doctest(source, names, page, page, line - 1)
    report = io.StringIO()
    runner = doctest.DocTestRunner(_Checker(), optionflags=doctest.ELLIPSIS)
    runner.run(parsed, out=report.write, clear_globs=False)
    names.update(parsed.globs)
    return report.getvalue()


def main() -> None:
    """Answer each line of standard input."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what blocks print is no answer
    names: dict[str, Any] = {"__name__": "__page__"}
    sys.path[0] = ""  # as an interactive Python has it
    for text in sys.stdin:
        block = json.loads(text)
        for folder in site.getsitepackages():
            site.addsitedir(folder)  # a page may have installed a plugin since
        importlib.invalidate_caches()
        run = _examples if block["kind"] == "pycon" else _run
        wrong = run(block["text"], block["page"], block["line"], names)
        answers.write(json.dumps(wrong) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
