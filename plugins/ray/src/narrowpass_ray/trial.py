"""One trial of a sweep: a pipeline built, and compared with the model as it was."""

from __future__ import annotations

import hashlib
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import narrowpass
from narrowpass import Samples
from narrowpass.errors import DataError, NarrowpassError
from narrowpass.framework.boundary import sentence
from narrowpass_analysis.latency import measure
from narrowpass_analysis.metrics import Difference, difference
from narrowpass_ir.sizes import disk_bytes


@dataclass(frozen=True)
class Judging:
    """How trials are judged; pickled and sent to workers.

    Attributes:
        model: the path of the ONNX file, which all nodes can read.
        data: samples, as `Samples.parse` takes them; for passes that need data, and to compare.
        backend: what runs both, with its options; None for the available one of highest priority.
        threads: of a run.
        runs: of each that are timed, in turns.
        bundles: the folder where bundles are kept, which all nodes can write to; None for none.
    """

    model: str
    data: str
    backend: str | None = None
    threads: int = 1
    runs: int = 20
    bundles: str | None = None


@dataclass(frozen=True)
class Trial:
    """What a pipeline led to.

    Attributes:
        pipeline: its text.
        error: why there is nothing else; empty where there is.
        bytes: of the bundle on disk.
        before: of the model's bundle without passes.
        seconds: of a run on the first sample; the median.
        seconds_before: of the model as it was, in turns with the other.
        metrics: the worst of all outputs and samples: ``relative``, ``sqnr``, ``cosine``, and
            ``top1`` where outputs have rows.
        samples: that were compared.
        took: seconds of the trial.
    """

    pipeline: str
    error: str = ""
    bytes: int = 0
    before: int = 0
    seconds: float = 0.0
    seconds_before: float = 0.0
    metrics: Mapping[str, float] = field(default_factory=dict)
    samples: int = 0
    took: float = 0.0

    @property
    def ratio(self) -> float:
        """The time of a run, as a share of that of the model as it was."""
        return self.seconds / self.seconds_before if self.seconds_before else 0.0


def identifier(pipeline: str) -> str:
    """Return the name of a trial's files."""
    return hashlib.sha256(pipeline.encode()).hexdigest()[:16]


def run_trial(judging: Judging, pipeline: str) -> Trial:
    """Build a pipeline, and judge it; what goes wrong is in the answer."""
    start = time.perf_counter()
    try:
        with tempfile.TemporaryDirectory(prefix="narrowpass-") as folder:
            return _judged(judging, pipeline, Path(folder), start)
    except Exception as error:  # noqa: BLE001  # the other trials go on
        own = "" if isinstance(error, NarrowpassError) else "the trial failed: "
        return Trial(pipeline, f"{own}{sentence(error)}", took=time.perf_counter() - start)


def _judged(judging: Judging, pipeline: str, folder: Path, start: float) -> Trial:
    samples = Samples.parse(judging.data)
    plain = folder / "plain.narrow"
    kept = judging.bundles and Path(judging.bundles) / f"{identifier(pipeline)}.narrow"
    narrow = kept or folder / "narrow.narrow"
    narrowpass.build(judging.model, "", plain, target=judging.backend)
    narrowpass.build(judging.model, pipeline, narrow, target=judging.backend, calibration=samples)
    options: dict[str, Any] = {"threads": judging.threads, "cache": "memory"}
    with (
        narrowpass.load(plain, judging.backend, **options) as reference,
        narrowpass.load(narrow, judging.backend, **options) as program,
    ):
        worst: Difference | None = None
        count, first = 0, None
        for feeds in samples:
            count += 1
            first = feeds if first is None else first
            right, got = reference.run(feeds), program.run(feeds)
            for name, value in right.items():
                try:
                    found = difference(got[name], value)
                except DataError as error:
                    raise DataError(f"sample {count}, output {name!r}: {error}") from error
                worst = found if worst is None else worst.worst(found)
        if first is None or worst is None:
            raise DataError(f"{judging.data} holds nothing to compare outputs on")
        feeds = first
        before, after = measure(
            (lambda: reference.run(feeds), lambda: program.run(feeds)), judging.runs
        )
    metrics = {"relative": worst.relative, "sqnr": worst.sqnr, "cosine": worst.cosine}
    if worst.top1 is not None:
        metrics["top1"] = worst.top1
    return Trial(
        pipeline,
        bytes=disk_bytes(narrow),
        before=disk_bytes(plain),
        seconds=after.median,
        seconds_before=before.median,
        metrics=metrics,
        samples=count,
        took=time.perf_counter() - start,
    )
