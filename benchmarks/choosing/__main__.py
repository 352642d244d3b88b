"""Chooses types of many real models within an error, beside one type for all nodes.

    python benchmarks/choosing [--only 'silero*'] [--groups package,torch,transformers]
        [--max-error rel:1e-2] [--threads 1] [--rounds 9] [--limit SECONDS] [--again]
        [--json ALL.json] [--table TABLE.md] [--plot PLOT.svg] [--list]
        [--measured]

Models are those of the gallery (``benchmarks/gallery``). Each is built with `fold` alone, with
`auto`, with each of our types wherever it goes, and by onnxruntime and NNCF, where these are
installed (see `peers`). Builds see `data.BUILT_FROM` samples; errors are those on others, against
the model that `fold` wrote, and forms within the limit are timed in turns. The limit is
``rel:1e-2``, or what `forms.LIMITS` has for a model: a cosine for embeddings, agreement for
classifiers.

A model is measured in a process of its own, which is ended after ``--limit`` seconds. Figures stay
in ``~/.cache/narrowpass-gallery``, one file a model, and are not measured again; ``--measured``
shows those that are there. Times are those of one thread by default: two are at the mercy of other
programs on a busy machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))  # the folder of `gallery`

from figures import figure, lines, summary
from gallery import Model
from gallery.command import chosen_models, parser_for, publish
from gallery.packages import FOLDER
from measuring import Settings, measure
from runners.apart import ApartError, run_apart
from runners.turns import cores


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is asked for, and print the table."""
    parser = parser_for(__doc__, groups="package,torch,transformers", rounds=9)
    parser.add_argument("--max-error", help="for all models, in place of what each has")
    parser.add_argument("--measured", action="store_true", help="measure nothing more")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds for a model")
    parser.add_argument("--json", type=Path, help="write all figures to a file, too")
    given = parser.parse_args(arguments)
    chosen = chosen_models(given)
    if not chosen:
        return
    threads = cores(given.threads)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:threads])
    settings = Settings(given.max_error, given.rounds)
    rows = []
    for index, model in enumerate(chosen, 1):
        path = _store(model, given)
        if given.measured and not path.exists():
            continue
        if not given.measured and (given.again or not path.exists()):
            print(f"[{index}/{len(chosen)}] {model.name}", file=sys.stderr, flush=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(_measured(model.name, settings, given.limit), indent=1))
        rows.append(json.loads(path.read_text()))
    if given.json:
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    publish(given, "\n".join([*lines(rows), "", *summary(rows)]), figure(rows))


def _measured(name: str, settings: Settings, limit: float) -> dict[str, Any]:
    """Return the figures of a model, measured in another process; why there are none else."""
    try:
        return {"model": name, **run_apart(measure, (name, settings), limit)}
    except ApartError as error:
        return {"model": name, "failure": str(error)}


def _store(model: Model, given: argparse.Namespace) -> Path:
    named = f"{model.name} {given.max_error} {given.threads}"
    return FOLDER / "choosing" / f"{hashlib.sha256(named.encode()).hexdigest()[:16]}.json"


if __name__ == "__main__":
    main()
