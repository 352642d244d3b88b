"""Small models with random weights, saved as transformers saves them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))  # for numpy_kit


@pytest.fixture
def save(tmp_path):
    """Return a function that saves a model of a configuration, and returns it with the folder."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    def saved(config, kind="AutoModelForCausalLM", dtype="float32"):
        torch.manual_seed(0)
        config._attn_implementation = "eager"
        model = getattr(transformers, kind).from_config(config).eval()
        with torch.no_grad():
            for name, value in model.named_parameters():
                # Biases and norms of a new model are 0 and 1: wrong ones would not be seen.
                if value.ndim == 1:
                    value.add_(torch.randn(value.shape) * 0.1)
                elif "embed" not in name:
                    value.mul_(4)
        model = model.to(getattr(torch, dtype))
        folder = tmp_path / "model"
        model.save_pretrained(folder)
        wide = getattr(transformers, kind).from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        )
        return wide.eval(), folder

    return saved


@pytest.fixture(params=["reference", "xnn-cpu"])
def backend(request):
    """Return the name of a backend that is installed."""
    from narrowpass import load_plugins

    if request.param not in load_plugins().registry.backends:
        pytest.skip(f"{request.param} is not installed")
    return request.param
