"""A candidate of a third party: weights rounded to 8 bits of mantissa, as bfloat16 has."""

import ml_dtypes
import onnx_ir as ir

from narrowpass import Candidate, hookimpl


class Rounded(Candidate):
    """Stores the weights of MatMul as bfloat16, and computes in float32."""

    name = "rounded"
    rank = 40

    def rewrite(self, model, nodes, ctx):
        """Put a Cast from bfloat16 before each matmul."""
        for node in [n for n in model.graph if n.name in nodes and n.op_type == "MatMul"]:
            weight = node.inputs[1]
            if weight.const_value is None or weight.dtype != ir.DataType.FLOAT:
                continue
            stored = weight.const_value.numpy().astype(ml_dtypes.bfloat16)
            narrow = ir.val(f"{weight.name}.rounded", const_value=ir.tensor(stored))
            model.graph.register_initializer(narrow)
            cast = ir.node("Cast", [narrow], attributes={"to": ir.DataType.FLOAT.value})
            cast.name, cast.outputs[0].name = f"{narrow.name}/Cast", f"{narrow.name}.wide"
            model.graph.insert_before(node, cast)
            node.replace_input_with(1, cast.outputs[0])
            if not weight.uses():
                del model.graph.initializers[weight.name]
        return model


@hookimpl
def narrowpass_candidates():
    return [Rounded()]
