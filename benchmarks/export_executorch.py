"""Exports the models of the benchmarks to ExecuTorch, lowered to its XNNPACK backend.

    python benchmarks/export_executorch.py FOLDER [NAME ...] [--sequence 128]

Writes ``NAME.pte`` for batch 1, with sequences of one fixed length, beside the ONNX files of
``export.py``; ``runtimes.py --runtimes executorch ...`` finds them there. Needs the dependency
group ``executorch``. A file that exists is not written again.
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
    parser.add_argument("--sequence", type=int, default=128)
    arguments = parser.parse_args()
    for name in arguments.names or zoo.MODELS:
        path = arguments.folder / f"{name}.pte"
        if not path.exists():
            export(name, path, arguments.sequence)
        print(f"{path} {path.stat().st_size / 1e6:.1f} MB", flush=True)


def export(name: str, path: Path, sequence: int) -> None:
    """Lower one model, all of it that XNNPACK takes."""
    import torch
    from variants import executorch_lowering

    given = tuple(torch.from_numpy(array) for array in zoo.feeds(name, 0, 1, sequence).values())
    executorch_lowering.plain(zoo.build(name), given, path)


if __name__ == "__main__":
    main()
