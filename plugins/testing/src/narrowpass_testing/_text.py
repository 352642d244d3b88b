"""Models from and to the text form of ONNX."""

from __future__ import annotations

import onnx.checker
import onnx.parser
import onnx.printer
import onnx_ir as ir

from narrowpass.errors import ModelError

_IR_VERSION = 10


def model_from_text(text: str, *, opset: int = 18) -> ir.Model:
    """Read a model from ONNX text.

    Args:
        text: a model, or only its graph, such as
            ``g (float[N] x) => (float[N] y) { y = Relu(x) }``.
        opset: the version of the standard operators where `text` is only a graph.

    Raises:
        ModelError: text that does not parse, or a model that onnx's checker rejects.
    """
    if not text.lstrip().startswith("<"):
        text = f'<ir_version: {_IR_VERSION}, opset_import: ["" : {opset}]>\n{text}'
    try:
        proto = onnx.parser.parse_model(text)
        onnx.checker.check_model(proto, full_check=True)
    except onnx.parser.ParseError as error:
        raise ModelError(f"the text of the model does not parse: {error}") from error
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        raise ModelError(f"onnx's checker rejects the model: {error}") from error
    return ir.from_proto(proto)


def model_to_text(model: ir.Model) -> str:
    """Return a model as ONNX text, for messages. Not every model can be read back from it."""
    return onnx.printer.to_text(ir.to_proto(model))
