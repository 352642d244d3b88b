"""Put what commands print now into the pages that show something else.

``python tests/docs/refresh_pages.py docs/tutorial.md ...`` changes the pages named; look at the
difference before you commit it. Output that a page shortens with ``...`` comes back whole, and a
page where something else is wrong is left as it is, with the error.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import docs_pages
import docs_session

WHEELS = Path(os.environ.get("NARROWPASS_TEST_WHEELS", ".tox/dist"))
"""What ``tox run -e wheels`` has built."""


def refresh(page: Path) -> int:
    """Bring one page up to date; return the number of commands whose output was replaced."""
    text = page.read_text("utf-8")
    stale: list[tuple[docs_pages.Command, str]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        docs_session.Session(page, Path(folder), WHEELS) as session,
    ):
        session.stale = stale
        for block in docs_pages.blocks(page):
            session.run(block)
    for command, printed in stale:
        shown = "$ " + command.text.replace("\n", "\n> ") + "\n"
        output = "\n".join(line.rstrip() for line in printed.rstrip("\n").splitlines()) + "\n"
        before = shown + command.expected + ("\n" if command.expected else "")
        if before not in text:
            sys.exit(f"{page}: {command.text}: not found as it was read")
        text = text.replace(before, shown + output, 1)
    page.write_text(text, "utf-8")
    return len(stale)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        path = Path(name).resolve()
        sys.stdout.write(f"{name}: {refresh(path)} outputs replaced\n")
