"""``python -m narrowpass``: the command line."""

from __future__ import annotations

from narrowpass.cli import main

if __name__ == "__main__":
    main()
