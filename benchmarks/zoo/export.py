"""Exports the models by name, and draws feeds for them."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from torch import nn

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Kind:
    """The inputs and outputs of the models of one kind.

    Attributes:
        inputs: for each input, the names of its dimensions; a number for a fixed one.
        output: the name of the output.
        output_dims: the same for the output.
    """

    inputs: Mapping[str, tuple[str | int, ...]]
    output: str
    output_dims: tuple[str, ...]


_TOKENS = ("batch", "sequence")
_IMAGE = Kind({"x": ("batch", 3, 224, 224)}, "y", ("batch",))
_ENCODER = Kind(
    {"input_ids": _TOKENS, "attention_mask": _TOKENS, "token_type_ids": _TOKENS},
    "last_hidden_state",
    _TOKENS,
)


@dataclass(frozen=True)
class Entry:
    """One model: its kind and the name of its function in `zoo.convolutional` or so."""

    kind: Kind
    module: str
    maker: str


MODELS: Mapping[str, Entry] = {
    "resnet50": Entry(_IMAGE, "convolutional", "resnet50"),
    "mobilenet-v2": Entry(_IMAGE, "convolutional", "mobilenet_v2"),
    "vit-b16": Entry(_IMAGE, "transformers", "vit_b16"),
    "minilm": Entry(_ENCODER, "transformers", "minilm"),
    "bert-base": Entry(_ENCODER, "transformers", "bert_base"),
}


def export(name: str, folder: Path) -> Path:
    """Return the ONNX file of a model, exported if it is not in `folder` yet.

    Args:
        name: one of `MODELS`.
        folder: where the file is, or goes, as ``NAME-torchscript.onnx``.
    """
    path = folder / f"{name}-torchscript.onnx"
    if path.exists():
        return path
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part")
    kind = MODELS[name].kind
    model = build(name)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _export(model, kind, unfinished)
    unfinished.rename(path)
    return path


def feeds(name: str, seed: int, batch: int, sequence: int = 16) -> dict[str, Array]:
    """Return random feeds of a model: images of unit variance, or tokens without padding."""
    rng = np.random.default_rng(seed)
    sizes = {"batch": batch, "sequence": sequence}
    built: dict[str, Array] = {}
    for key, dims in MODELS[name].kind.inputs.items():
        shape = [sizes.get(dim, dim) if isinstance(dim, str) else dim for dim in dims]
        if key == "x":
            built[key] = rng.standard_normal(shape, np.float32)
        elif "mask" in key:
            built[key] = np.ones(shape, np.int64)
        else:
            built[key] = rng.integers(0, 1 if "type" in key else 30000, shape, endpoint=True)
    return built


def build(name: str) -> nn.Module:
    """Return a model of torch, ready to be exported."""
    import importlib

    import torch

    torch.manual_seed(0)
    entry = MODELS[name]
    maker: Callable[[], nn.Module] = getattr(
        importlib.import_module(f"zoo.{entry.module}"), entry.maker
    )
    model = maker().eval()
    if name != "minilm":
        # As training leaves them: with biases of zero a tool may drop additions.
        for parameter_name, parameter in model.named_parameters():
            if parameter_name.endswith("bias") and not parameter.detach().any():
                torch.nn.init.normal_(parameter, std=0.02)
    if entry.module == "convolutional":
        from zoo.convolutional import condition

        model = condition(model)
    return model


def _export(model: nn.Module, kind: Kind, path: Path) -> None:
    import torch

    axes = {
        name: {axis: dim for axis, dim in enumerate(dims) if isinstance(dim, str)}
        for name, dims in {**kind.inputs, kind.output: kind.output_dims}.items()
    }
    with torch.no_grad():
        torch.onnx.export(
            model,
            _example(kind),
            path,
            input_names=list(kind.inputs),
            output_names=[kind.output],
            dynamic_axes=axes,
            dynamo=False,
            do_constant_folding=False,
            opset_version=17,
        )


def _example(kind: Kind) -> tuple[Any, ...]:
    import torch

    sizes = {"batch": 2, "sequence": 16}
    built = []
    for key, dims in kind.inputs.items():
        shape = [sizes[dim] if isinstance(dim, str) else dim for dim in dims]
        if key == "x":
            built.append(torch.randn(shape))
        elif "mask" in key:
            built.append(torch.ones(shape, dtype=torch.int64))
        else:
            built.append(torch.randint(0, 2 if "type" in key else 1000, shape))
    return tuple(built)
