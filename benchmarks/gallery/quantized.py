"""Forms of models by onnxruntime's quantization tools."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from gallery.feeds import feeds_of
from gallery.model import Feeds, Model

FORMS = ("dynamic", "qdq", "qoperator")


def models(plain: Sequence[Model]) -> list[Model]:
    """Return each form of each model that is not of integers already."""
    if importlib.util.find_spec("onnxruntime") is None:
        return []
    return [
        Model(
            f"{model.name} ({form})",
            form,
            lambda folder, model=model, form=form: write(model, form, folder),
            model.sizes,
            model.values,
        )
        for form in FORMS
        for model in plain
        if "quant" not in model.name
    ]


class _Reader:
    """Returns the same few feeds to the tool that calibrates."""

    def __init__(self, feeds: Sequence[Feeds]) -> None:
        self._left: Iterator[Feeds] = iter(feeds)

    def get_next(self) -> Feeds | None:
        """Return the next feeds; None after the last."""
        return next(self._left, None)


def write(model: Model, form: str, folder: Path) -> Path:
    """Quantize a model, unless its file is there."""
    from onnxruntime import quantization as tools

    source = model.build(folder)
    path = folder / f"{form}-{source.parent.name}-{source.name}"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    ready, draft = folder / "shapes.onnx", path.with_suffix(".part.onnx")
    tools.quant_pre_process(str(source), str(ready), skip_symbolic_shape=True)
    if form == "dynamic":
        tools.quantize_dynamic(ready, draft, weight_type=tools.QuantType.QInt8)
    else:
        samples: list[Any] = [feeds_of(source, model, seed) for seed in range(4)]
        kind = tools.QuantFormat.QDQ if form == "qdq" else tools.QuantFormat.QOperator
        tools.quantize_static(ready, draft, _Reader(samples), quant_format=kind)
    ready.unlink()
    draft.rename(path)
    return path
