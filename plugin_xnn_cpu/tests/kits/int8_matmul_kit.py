"""Shared by the tests of matmuls with constant int8 matrices."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from oracle_kit import expected_outputs

from narrowpass_planning.plan.executor import Entry
from narrowpass_planning.weights.weight import Quantized, Weight
from narrowpass_xnn_cpu.native import target
from narrowpass_xnn_cpu.native.own.upcast import MIN_ROWS, upcasts
from narrowpass_xnn_cpu.native.runtime.pool import shared
from narrowpass_xnn_cpu.native.runtime.tape import Tape, aligned

RNG = np.random.default_rng(31)
WEIGHTS = f"{'' if upcasts(MIN_ROWS) else 'xnn '}fully connected in int8 (weights)"
OURS = target.current().int8_is_own or not target.current().has_fma
ROWS = f"{'' if OURS else 'xnn '}fully connected in int8 (rows too)"


def quantized_matmul(
    inputs: int = 37,
    outputs: int = 19,
    *,
    per_channel: bool = True,
    way: str = "MatMul",
    bias: bool = False,
    after: str = "",
    seed: int = 0,
    alpha: float = 1.0,
    dynamic: bool = False,
    **constants: np.ndarray | None,
) -> onnx.ModelProto:
    """Build DequantizeLinear -> MatMul or Gemm [-> Add] [-> Relu or Clip] over x [N, inputs].

    `way` is MatMul, Gemm, Gemm with transB, or a MatMul whose matrix is transposed, before or
    after it is dequantized, or reshaped.
    """
    rng = np.random.default_rng(seed)
    turned = way in ("transB", "transpose", "integers")
    matrix = rng.integers(-127, 128, (inputs, outputs)).astype(np.int8)
    scale = (rng.random(outputs if per_channel else ()) * 0.02 + 1e-3).astype(np.float32)
    found = {"w": matrix.T.copy() if turned else matrix, "s": scale, **constants}
    axis = 0 if way in ("transB", "transpose") else 1
    nodes = []
    if way == "reshape":
        found["w"] = found["w"].reshape(1, inputs, 1, outputs)
        found["shape"] = np.array([inputs, outputs])
        axis = -1
    if way == "integers":
        nodes.append(helper.make_node("Transpose", ["w"], ["turned"], perm=[1, 0]))
    given_ = ["turned" if way == "integers" else "w", "s", *(["z"] if "z" in found else [])]
    nodes.append(helper.make_node("DequantizeLinear", given_, ["d"], axis=axis))
    last = "d"
    if way == "transpose":
        nodes.append(helper.make_node("Transpose", ["d"], ["t"], perm=[1, 0]))
        last = "t"
    if way == "reshape":
        nodes.append(helper.make_node("Reshape", ["d", "shape"], ["t"]))
        last = "t"
    gemm = way in ("Gemm", "transB")
    if bias and "b" not in found:
        found["b"] = rng.standard_normal(outputs).astype(np.float32)
    if gemm:
        operands = ["x", last, *(["b"] if bias else [])]
        options = {"transB": int(way == "transB"), "alpha": alpha}
        nodes.append(helper.make_node("Gemm", operands, ["h"], name="matmul", **options))
    else:
        nodes.append(helper.make_node("MatMul", ["x", last], ["h"], name="matmul"))
        if bias:
            nodes.append(helper.make_node("Add", ["h", "b"], ["a"]))
    if after == "Relu":
        nodes.append(helper.make_node("Relu", [nodes[-1].output[0]], ["c"]))
    if after == "Clip":
        found |= {"low": np.array(-0.5, np.float32), "high": np.array(0.75, np.float32)}
        nodes.append(helper.make_node("Clip", [nodes[-1].output[0], "low", "high"], ["c"]))
    nodes[-1].output[0] = "y"
    if dynamic:
        (node,) = [node for node in nodes if node.name == "matmul"]
        node.metadata_props.add(key="narrowpass.activations", value="dynamic")
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", inputs])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, name) for name, a in found.items() if a is not None],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)])
    return onnx.shape_inference.infer_shapes(proto)


def rows(count: int, inputs: int = 37) -> np.ndarray:
    return RNG.standard_normal((count, inputs)).astype(np.float32)


def kernel_of(program) -> str:
    (plan,) = [plan for plan in program.explain() if plan.node == "matmul"]
    return plan.kernel


def with_one(number: int, shape: tuple[int, ...] = (37, 19)) -> np.ndarray:
    array = RNG.integers(-127, 128, shape).astype(np.int8)
    array[3, 2] = number
    return array


PER_CHANNEL = np.linspace(1e-3, 2e-2, 19, dtype=np.float32)
ZEROS = np.zeros(19, np.int8)


def at(array: np.ndarray, index: int, number: float) -> np.ndarray:
    changed = array.copy()
    changed[index] = number
    return changed


def reference(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    """Compute y in float32 from the dequantized operands, outside of this project."""
    return expected_outputs(model, {"x": x})["y"]


def quantized(matrix, scale, axis=0, zero=None, name="") -> Quantized:
    def weight(array, part):
        return Weight.of(np.asarray(array), f"{name}/{part}" if name else "")

    return Quantized(
        weight(matrix, "w"),
        weight(np.float32(scale), "s"),
        None if zero is None else weight(zero, "z"),
        axis,
    )


def run(operator, x: np.ndarray, outputs: int, threads: int = 1) -> np.ndarray:
    pool = shared(threads)
    params = operator.reshape(len(x), pool)
    tape = Tape([Entry(operator.call, (0,), 1, operator, params, True, "matmul")], 2)
    given_ = aligned(x.nbytes)[: x.nbytes].view(np.float32)
    given_[...] = x.reshape(-1)
    result = np.empty((len(x), outputs), np.float32)
    scratch = aligned(operator.workspace)
    tape.bind_workspace(scratch, 0)
    tape.bind(0, given_)
    tape.bind(1, result)
    tape.run(pool)
    return result
