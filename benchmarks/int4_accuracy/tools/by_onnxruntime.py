"""onnxruntime's MatMulNBits quantizer; needs onnxruntime, and torch for its HQQ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
from answering import Array, Reader, Run, answer


def quantize(request: dict[str, Any]) -> tuple[Run, float]:
    """Quantize the layers; the head stays float32.

    Scales are float32, of 32 / block bits a weight; so are HQQ's zero points, others have 4 bits.
    """
    from onnxruntime.quantization import matmul_nbits_quantizer as nbits

    method, block = request["method"], request["block"]
    symmetric = method in ("rtn", "gptq")
    if method.startswith("rtn"):
        config = nbits.DefaultWeightOnlyQuantConfig(block_size=block, is_symmetric=symmetric)
    elif method == "hqq":
        config = nbits.HQQWeightOnlyQuantConfig(block_size=block, bits=4)
    elif method.startswith("gptq"):
        config = nbits.GPTQWeightOnlyQuantConfig(Reader(request["samples"]))
    else:
        raise ValueError(f"no method {method!r}")
    quantizer = nbits.MatMulNBitsQuantizer(
        onnx.load(request["model"]),
        block_size=block,
        is_symmetric=symmetric,
        nodes_to_exclude=["output"],
        algo_config=config,
    )
    quantizer.process()
    path = Path(request["folder"]) / "onnxruntime.onnx"
    quantizer.model.save_model_to_file(str(path))
    nodes = [node for node in onnx.load(path).graph.node if node.op_type == "MatMulNBits"]
    if not nodes:
        raise ValueError("it has quantized no matmul")
    zeros = 0.0 if symmetric else (32 if method == "hqq" else 4) / block
    return _run(path), 4 + 32 / block + zeros


def _run(path: Path) -> Run:
    import onnxruntime

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def run(ids: Array) -> Array:
        logits: Array = session.run(None, {"ids": ids})[0][0]
        return logits

    return run


if __name__ == "__main__":
    answer(quantize)
