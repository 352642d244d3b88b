"""NNCF's weight compression; needs nncf and openvino."""

from __future__ import annotations

from typing import Any

import numpy as np
from answering import Array, Run, answer

OPTIONS = {
    "plain": (),
    "awq": ("awq",),
    "scale": ("scale_estimation",),
    "awq+scale": ("awq", "scale_estimation"),
    "gptq": ("gptq",),
    "gptq+scale": ("gptq", "scale_estimation"),
}
"""What `compress_weights` is asked for, by method; scales are float16."""


def quantize(request: dict[str, Any]) -> tuple[Run, float]:
    """Quantize all layers to 4 bits, symmetric; embedding and head are int8, NNCF's default."""
    import nncf
    import openvino

    model = openvino.convert_model(request["model"])
    feeds = [{"ids": np.array([ids], np.int64)} for ids in request["samples"]]
    method, block = request["method"].removesuffix("-asymmetric"), request["block"]
    symmetric = method == request["method"]
    modes = nncf.CompressWeightsMode
    chosen: dict[str, Any] = dict.fromkeys(OPTIONS[method], True)
    if chosen:
        chosen |= {"dataset": nncf.Dataset(feeds), "subset_size": len(feeds)}
    compressed = nncf.compress_weights(
        model,
        mode=modes.INT4_SYM if symmetric else modes.INT4_ASYM,
        group_size=block,
        ratio=1.0,
        **chosen,
    )
    # Rows stay float32: what is compared are weights.
    hints = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
    program = openvino.compile_model(compressed, "CPU", hints)

    def run(ids: Array) -> Array:
        logits: Array = program({"ids": ids})[0][0]
        return logits

    return run, 4 + 16 / block + (0.0 if symmetric else 4 / block)


if __name__ == "__main__":
    answer(quantize)
