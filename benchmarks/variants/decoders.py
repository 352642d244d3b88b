"""The forms in which decoders are compared, and the tools that write them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from runners.apart import ApartError, run_apart

from variants import bytes_of_weights


@dataclass(frozen=True)
class Source:
    """The source of the forms of a decoder.

    Attributes:
        model: the ONNX file of a phase.
        size: the name of its sizes, in ``decoder.SIZES``.
        feeds: what it is timed with.
    """

    model: Path
    size: str
    feeds: dict[str, np.ndarray[Any, Any]]


Builder = Callable[[Source, Path], None]


def _bundle(pipeline: str) -> Builder:
    def build(source: Source, target: Path) -> None:
        import narrowpass

        narrowpass.build(str(source.model), pipeline, out=str(target), target="xnn-cpu")

    return build


def _executorch(*, dynamic: bool) -> Builder:
    def build(source: Source, target: Path) -> None:
        from variants import executorch_decoder

        executorch_decoder.lower(source.model, source.size, source.feeds, target, dynamic=dynamic)

    return build


def _dynamic(source: Source, target: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    kind = QuantType.QInt8
    quantize_dynamic(
        source.model, target, weight_type=kind, per_channel=True, use_external_data_format=True
    )


def _blocks(bits: int, block: int, level: int) -> Builder:
    """Return what quantizes the layers to some bits, and the head to 8.

    The head's rows are int8 at any level: onnxruntime upcasts the whole matrix of 8 bits otherwise.
    """

    def build(source: Source, target: Path) -> None:
        from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

        model = onnx.load(source.model)
        head = _untie(model)
        for each, excluded, rows in ((bits, [head], level), (8, [], 4)):
            quantizer = MatMulNBitsQuantizer(
                model,
                bits=each,
                block_size=block,
                is_symmetric=True,
                accuracy_level=rows,
                nodes_to_exclude=excluded,
            )
            quantizer.process()
            model = quantizer.model.model
        quantizer.model.save_model_to_file(str(target), use_external_data_format=True)

    return build


def _untie(model: onnx.ModelProto) -> str:
    """Store the embedding once more, transposed, for a head that is tied; return the head's name.

    The quantizer passes by a matmul whose matrix is computed.
    """
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    (turn,) = [n for n in graph.node if n.op_type == "Transpose" and n.input[0] in constants]
    (head,) = [node for node in graph.node if turn.output[0] in node.input]
    matrix = onnx.numpy_helper.to_array(constants[turn.input[0]]).T
    graph.initializer.append(onnx.numpy_helper.from_array(matrix, turn.output[0]))
    graph.node.remove(turn)
    head.name = head.name or "head"
    return str(head.name)


def _nncf(mode: str, **options: Any) -> Builder:
    def build(source: Source, target: Path) -> None:
        import nncf
        import openvino

        built = nncf.compress_weights(
            openvino.convert_model(source.model), mode=nncf.CompressWeightsMode[mode], **options
        )
        openvino.save_model(built, target, compress_to_fp16=False)

    return build


@dataclass(frozen=True)
class Form:
    """One form of a decoder.

    Attributes:
        name: what the tables call it.
        precision: what it narrows to, as in ``fast_path.py``.
        ending: what follows the phase in the name of its file; empty for the model itself.
            ``{rows}`` and ``{total}`` are the sizes of the mask, for files that are for them alone.
        width: bytes that a weight takes.
        rival: narrowpass's form that it is compared with.
        build: writes the file.
    """

    name: str
    precision: str
    ending: str
    width: float
    rival: str
    build: Builder | None = None

    @property
    def runtime(self) -> str:
        """What runs it."""
        return self.name.partition(" ")[0]

    def path(self, source: Source) -> Path:
        """Where its file is."""
        if not self.ending:
            return source.model
        rows, total = source.feeds["mask"].shape
        ending = self.ending.format(rows=rows, total=total)
        return source.model.with_name(source.model.stem + ending)

    def stored(self, source: Source) -> int:
        """Return the bytes of the file that its weights are in; 0 if there is none."""
        path = self.path(source)
        beside = path.with_name(path.name + ".data")
        if path == source.model:
            beside = path.with_name("weights.bin")
        return bytes_of_weights(beside if beside.exists() else path) if path.exists() else 0


FORMS = (
    Form("narrowpass fp32", "float32", "-fp32.narrow", 4, "narrowpass fp32", _bundle("fold")),
    Form("onnxruntime fp32", "float32", "", 4, "narrowpass fp32"),
    Form("openvino fp32", "float32", "", 4, "narrowpass fp32"),
    Form(
        "executorch fp32",
        "float32",
        "-{rows}-{total}-fp32.pte",
        4,
        "narrowpass fp32",
        _executorch(dynamic=False),
    ),
    Form(
        "narrowpass bf16",
        "bfloat16",
        "-bf16.narrow",
        2,
        "narrowpass bf16",
        _bundle("fold,fp16{dtype=bfloat16}"),
    ),
    Form(
        "narrowpass fp16 weights",
        "bfloat16",
        "-fp16.narrow",
        2,
        "narrowpass fp16 weights",
        _bundle("fold,store-weights{dtype=float16}"),
    ),
    Form("openvino-default", "bfloat16", "", 4, "narrowpass bf16"),
    Form(
        "narrowpass int8 weights",
        "int8",
        "-weights.narrow",
        1,
        "narrowpass int8 weights",
        _bundle("fold,int8-sym{mode=weight-only}"),
    ),
    Form(
        "narrowpass int8 dynamic",
        "int8",
        "-dynamic.narrow",
        1,
        "narrowpass int8 dynamic",
        _bundle("fold,int8-sym{mode=dynamic}"),
    ),
    # As ExecuTorch has it: lookup tables stay float, embeddings above all.
    Form(
        "narrowpass float table",
        "int8",
        "-float-table.narrow",
        1,
        "narrowpass float table",
        _bundle("fold,int8-sym{mode=dynamic,red=[op:Gather]}"),
    ),
    Form("onnxruntime dynamic", "int8", "-dynamic.onnx", 1, "narrowpass int8 dynamic", _dynamic),
    Form(
        "onnxruntime 8 bits",
        "int8",
        "-8bits.onnx",
        1 + 4 / 128,
        "narrowpass int8 weights",
        _blocks(8, 128, 4),
    ),
    Form(
        "openvino nncf",
        "int8",
        "-nncf.xml",
        1,
        "narrowpass int8 weights",
        _nncf("INT8_SYM"),
    ),
    # Blocks of 32, the head in 8 bits: 4.5 bits with float16 scales, 5 with float32 ones.
    Form(
        "narrowpass 4 bits",
        "int4",
        "-int4.narrow",
        0.5 + 2 / 32,
        "narrowpass 4 bits",
        _bundle("fold,int4{block=32}"),
    ),
    Form(
        "narrowpass 4 bits dynamic",
        "int4",
        "-int4-dynamic.narrow",
        0.5 + 2 / 32,
        "narrowpass 4 bits dynamic",
        _bundle("fold,int4{block=32,activations=dynamic}"),
    ),
    Form(
        "onnxruntime 4 bits",
        "int4",
        "-4bits.onnx",
        0.5 + 4 / 32,
        "narrowpass 4 bits",
        _blocks(4, 32, 0),
    ),
    Form(
        "onnxruntime 4 bits dynamic",
        "int4",
        "-4bits-dynamic.onnx",
        0.5 + 4 / 32,
        "narrowpass 4 bits dynamic",
        _blocks(4, 32, 4),
    ),
    Form(
        "openvino 4 bits",
        "int4",
        "-4bits.xml",
        0.5 + 2 / 32,
        "narrowpass 4 bits dynamic",
        _nncf("INT4_SYM", group_size=32, ratio=1.0),
    ),
    Form(
        "executorch dynamic",
        "int8",
        "-{rows}-{total}-dynamic.pte",
        1,
        "narrowpass float table",
        _executorch(dynamic=True),
    ),
)


def prepared(form: Form, source: Source) -> str:
    """Write a form in a process of its own, if it is not there; return why there is none, if so."""
    path = form.path(source)
    if form.build is None or path.exists():
        return ""
    try:
        run_apart(_write, (form.name, source, path))
    except ApartError as failure:
        return str(failure)
    return ""


def _write(name: str, source: Source, path: Path) -> None:
    """Write a form, which is found by its name: closures are not pickled."""
    (form,) = [form for form in FORMS if form.name == name]
    logging.disable()
    if form.build is not None:
        form.build(source, path)
