"""Encoders compute what PyTorch computes from the same folder."""

from __future__ import annotations

import numpy as np
import pytest

import narrowpass

SIZES = {
    "vocab_size": 90,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 40,
}
CASES = {
    "bert": ("BertConfig", SIZES),
    "bert-relu": ("BertConfig", {**SIZES, "hidden_act": "relu"}),
    "roberta": ("RobertaConfig", {**SIZES, "pad_token_id": 1}),
    "distilbert": (
        "DistilBertConfig",
        {"vocab_size": 90, "dim": 48, "n_layers": 2, "n_heads": 4, "hidden_dim": 64},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_hidden_states(name, save, backend):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    kind, settings = CASES[name]
    model, folder = save(getattr(transformers, kind)(**settings), "AutoModel")
    ids = np.random.default_rng(0).integers(3, 90, (2, 11))
    mask = np.ones_like(ids)
    ids[1, 8:], mask[1, 8:] = 1, 0
    feeds = {"input_ids": ids, "attention_mask": mask}
    with narrowpass.load(folder, backend, pipeline="", cache=False) as program:
        if "token_type_ids" in {spec.name for spec in program.inputs("main")}:
            feeds["token_type_ids"] = np.zeros_like(ids)
            if "Bert" in kind:
                feeds["token_type_ids"][:, 6:] = 1
        found = program.run(feeds)
    with torch.no_grad():
        expected = model(**{key: torch.from_numpy(value) for key, value in feeds.items()})
    # Additions of at most 64 multiplications in float32 in another order, over two layers.
    hidden = expected.last_hidden_state.numpy()
    np.testing.assert_allclose(found["last_hidden_state"][0], hidden[0], atol=1e-4)
    np.testing.assert_allclose(found["last_hidden_state"][1, :8], hidden[1, :8], atol=1e-4)
    if "pooler_output" in found:
        pooled = expected.pooler_output.numpy()
        np.testing.assert_allclose(found["pooler_output"], pooled, atol=1e-4)
    assert ("pooler_output" in found) == (name != "distilbert")


def test_what_is_behind_the_encoder_is_reported(save):
    transformers = pytest.importorskip("transformers")
    from narrowpass_huggingface.importer import FolderImporter

    _, folder = save(transformers.BertConfig(**SIZES), "AutoModelForMaskedLM")
    found = FolderImporter().load(str(folder))
    assert "left out" in found.notes[0]
    assert "cls.predictions" in found.notes[0]
