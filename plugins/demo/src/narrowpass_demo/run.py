"""Builds of the demo's model and what they are worth: size, latency, accuracy."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from narrowpass.bundle import Bundle
from narrowpass.calibration.samples import Samples
from narrowpass.driver import build
from narrowpass.runtime.backend import CompileOptions, Program
from narrowpass_analysis.latency import measure
from narrowpass_analysis.metrics import difference
from narrowpass_ir.sizes import count_bytes, count_nodes, disk_bytes

if TYPE_CHECKING:
    from narrowpass.framework.plugins import Plugins, Registry
    from narrowpass.runtime.backend import Backend

Array = np.ndarray[Any, Any]
Show = Callable[[str, int, int], None]

PIPELINES = ("fold", "fold,fp16", "fold,int8-sym")
"""Shown beside the target's default pipeline, where the passes are installed."""

CALIBRATION_IMAGES = 64
_BATCH = 90
_PIXEL_MAX = 16


@dataclass(frozen=True)
class Row:
    """One build of the model.

    Attributes:
        label: ``original``, or the pipeline's text.
        pipeline: the pipeline's text; None for the original.
        path: the file or bundle.
        bytes: its size on disk, with the reports of a bundle.
        weights: bytes of its initializers.
        nodes: nodes in its graph.
        latency: median seconds of a run on one image.
        accuracy: share of the test images that it gets right.
        agreement: share of the test images on which it says the same as the original.
        relative: how far its outputs are from the original's, see `narrowpass_analysis.metrics`.
    """

    label: str
    pipeline: str | None
    path: str
    bytes: int
    weights: int
    nodes: int
    latency: float
    accuracy: float
    agreement: float
    relative: float

    def to_json(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Result:
    """What the demo found.

    Attributes:
        backend: what ran all of it.
        images: number of test images.
        passes: whether any pass is installed.
        rows: the original first.
    """

    backend: str
    images: int
    passes: bool
    rows: tuple[Row, ...]

    def to_json(self) -> dict[str, Any]:
        """Return all fields, for JSON."""
        return {
            "backend": self.backend,
            "images": self.images,
            "passes": self.passes,
            "rows": [row.to_json() for row in self.rows],
        }


def run_demo(
    folder: Path,
    plugins: Plugins,
    *,
    runs: int | None = None,
    show: Show = lambda what, done, total: None,
) -> Result:
    """Build the digit classifier with what is installed, and measure the builds.

    All builds run on the default backend. Their latencies are measured in turns.

    Args:
        folder: an existing folder that the model and its builds are written into.
        plugins: what to use.
        runs: runs of each build that are timed; None for as many as fit into a few seconds.
        show: called with the progress.

    Raises:
        OutputError: the folder cannot be written.
        NarrowpassError: a plugin's pass or backend failed.
    """
    registry = plugins.registry
    backend = registry.backend()
    model = folder / "digits.onnx"
    model.write_bytes(_resource("digits.onnx").read_bytes())
    images, labels = load_images()
    texts = pipelines(backend, registry)
    paths = [model, *(folder / _folder_name(text) for text in texts)]
    samples = Samples(
        f"{CALIBRATION_IMAGES} of the demo's images",
        lambda: ({"image": images[i : i + 1]} for i in range(CALIBRATION_IMAGES)),
    )
    bundles = [build(model, "", plugins=plugins)]
    for text, path in zip(texts, paths[1:], strict=True):
        show(f"building with {text or 'no passes'}", 0, 0)
        bundles.append(build(model, text, path, calibration=samples, plugins=plugins))
    with contextlib.ExitStack() as stack:
        programs = [
            stack.enter_context(backend.compile(_reopened(bundle, path), CompileOptions()))
            for bundle, path in zip(bundles, paths, strict=True)
        ]
        outputs = [
            _classify(program, images, functools.partial(show, f"running {label}"))
            for program, label in zip(programs, ["the original", *texts], strict=True)
        ]
        show("measuring latency", 0, 0)
        one = {"image": images[:1]}
        latencies = measure([functools.partial(p.run, one) for p in programs], runs)
    rows = tuple(
        Row(
            label=label,
            pipeline=None if index == 0 else label,
            path=str(path),
            bytes=disk_bytes(path),
            weights=count_bytes(bundle.methods["main"]),
            nodes=count_nodes(bundle.methods["main"]),
            latency=latency.median,
            accuracy=float(np.mean(output.argmax(axis=1) == labels)),
            agreement=float(np.mean(output.argmax(axis=1) == outputs[0].argmax(axis=1))),
            relative=difference(output, outputs[0]).relative,
        )
        for index, (label, path, bundle, latency, output) in enumerate(
            zip(["original", *texts], paths, bundles, latencies, outputs, strict=True)
        )
    )
    return Result(backend.name, len(images), bool(registry.passes), rows)


def load_images() -> tuple[Array, Array]:
    """Return the test images, float32 ``[450, 1, 8, 8]``, 0..1, and labels, uint8 ``[450]``."""
    with (
        _resource("digits.npz").open("rb") as file,
        np.load(file, allow_pickle=False) as archive,
    ):
        images = archive["image"].astype(np.float32)[:, None] / np.float32(_PIXEL_MAX)
        return images, archive["label"]


def pipelines(backend: Backend, registry: Registry) -> list[str]:
    """Return the pipelines to show: the backend's default, then those whose passes are there."""
    installed = {*registry.passes, *registry.pipelines}
    first = backend.default_pipeline(installed)
    texts = [text for text in PIPELINES if set(text.split(",")) <= installed]
    return [first, *(text for text in texts if text and not f"{first},".startswith(f"{text},"))]


def _resource(name: str) -> Any:
    return resources.files("narrowpass_demo") / name


def _folder_name(text: str) -> str:
    safe = "".join(c if c.isalnum() or c == "-" else "-" for c in text)
    return f"digits-{safe or 'unchanged'}.narrow"


def _reopened(bundle: Bundle, path: Path) -> Bundle:
    """Return the bundle as it is on disk: that is what a user runs."""
    return Bundle.load(path) if path.is_dir() else bundle


def _classify(program: Program, images: Array, show: Callable[[int, int], None]) -> Array:
    """Return the logits of all images."""
    parts: list[Array] = []
    for start in range(0, len(images), _BATCH):
        show(start, len(images))
        parts.append(program.run({"image": images[start : start + _BATCH]})["logits"])
    return np.concatenate(parts).astype(np.float32)
