"""Compares what int8 costs in accuracy, and what calibration takes, with other quantizers.

    python benchmarks/quantization/int8_accuracy.py DATA [--models FOLDER]
        [--tasks digits minilm ultraface]

DATA has ``ultraface-rfb-320.onnx`` and a folder ``photos``. MiniLM is exported to FOLDER with its
trained weights (dependency group ``models``). All tools start from the same model, folded and of
operator set 17, and calibrate with the same samples; each runs in a process of its own. Shown are
how good the results are (see `accuracy.tasks`), the seconds that quantizing takes, calibration
included, and by how many MB the memory of the process has grown at its peak meanwhile. A tool that
does not run here has a sentence instead. Needs onnxruntime, OpenVINO and NNCF, and Pillow for the
photographs.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pickle
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of `runners` and `zoo`

from accuracy import QUANTIZERS, TASKS, UnavailableError
from runners import memory
from runners.apart import first_line, run_apart

import narrowpass


def main() -> None:
    """Print a table for each task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--models", type=Path, default=Path(tempfile.gettempdir()) / "models")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--json", action="store_true", help="a line of JSON for each row")
    arguments = parser.parse_args()
    arguments.models.mkdir(parents=True, exist_ok=True)
    for name in arguments.tasks:
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            goal = run_apart(_build, (name, arguments.models, arguments.data, folder))
            if not arguments.json:
                print(f"\n{name}: {goal}")
            for label in QUANTIZERS:
                given = name, label, arguments.models, arguments.data, folder
                row = run_apart(_measure, given)
                _show(name, label, row, as_json=arguments.json)


def _build(name: str, models: Path, data: Path, folder: Path) -> str:
    """Write the float model that all tools start from, and return the goal."""
    task = TASKS[name](models, data)
    narrowpass.build(task.model, "fold,upgrade-opset{to=17}", folder / "float.onnx")
    return task.goal


def _measure(name: str, label: str, models: Path, data: Path, folder: Path) -> dict[str, Any]:
    """Quantize with one tool, and judge the result."""
    task = TASKS[name](models, data)
    own = folder / "".join(letter if letter.isalnum() else "-" for letter in label)
    own.mkdir()
    # Ranges that were found before are not found again.
    os.environ["NARROWPASS_CACHE_DIR"] = str(own / "cache")
    try:
        quantized = QUANTIZERS[label](task, folder / "float.onnx", own)
        before, start = memory.peak(), time.perf_counter()
        with contextlib.redirect_stdout(io.StringIO()):
            quantized.prepare()
        seconds, grown = time.perf_counter() - start, (memory.peak() - before) / 2**20
        run = quantized.load()
        found = [run(feeds) for feeds in task.samples]
    except UnavailableError as error:
        return {"skipped": str(error)}
    except Exception as error:  # noqa: BLE001  # what another tool does is its own affair
        return {"skipped": first_line(error)[:120]}
    kept = folder / "float.pickle"
    if label == "float32":
        kept.write_bytes(pickle.dumps(found))
    right = pickle.loads(kept.read_bytes())
    return {**task.judge(found, right), "seconds": seconds, "MB": grown}


def _show(task: str, label: str, row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"task": task, "quantizer": label.strip(), **row}), flush=True)
    elif "skipped" in row:
        print(f"{label:28} {row['skipped']}", flush=True)
    else:
        cells = "  ".join(f"{key} {value:8.4g}" for key, value in row.items())
        print(f"{label:28} {cells}", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
