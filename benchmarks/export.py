"""Exports well-known models to ONNX files, by both of torch's exporters.

    python benchmarks/export.py FOLDER [NAME ...] [--exporter dynamo|torchscript]

Needs the dependency group ``models``. A file that exists is not written again.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import zoo


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(zoo.MODELS))
    parser.add_argument("--exporter", choices=zoo.EXPORTERS, help="only this one")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(zoo.MODELS)
    if unknown:
        parser.error(f"no model {', '.join(sorted(unknown))}; there are {', '.join(zoo.MODELS)}")
    for name in arguments.names or zoo.MODELS:
        for exporter in [arguments.exporter] if arguments.exporter else zoo.EXPORTERS:
            path = zoo.export(name, exporter, arguments.folder)
            print(f"{path} {path.stat().st_size / 1e6:.1f} MB", flush=True)


if __name__ == "__main__":
    main()
