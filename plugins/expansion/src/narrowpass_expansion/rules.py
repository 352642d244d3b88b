"""The table of expansion rules: operator to the function that emits its nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from narrowpass_expansion import activations, embedding, experts, fused, indexing, ml, norms
from narrowpass_expansion.attention import attention, group_query, multi_head, rotary
from narrowpass_expansion.emitter import Emitter
from narrowpass_expansion.quantized import matmul, qlinear, recurrent

MICROSOFT = "com.microsoft"
ML = ml.DOMAIN

_POOL = (
    "auto_pad",
    "ceil_mode",
    "count_include_pad",
    "dilations",
    "kernel_shape",
    "pads",
    "strides",
)

Write = Callable[[Emitter], Sequence[ir.Value | None]]
"""Emits the nodes; returns a value for each output, None for one that nothing reads."""


@dataclass(frozen=True)
class Rule:
    """How an operator is expanded.

    Attributes:
        write: writes the nodes.
        since: the version of its operator set from which it has this meaning.
    """

    write: Write
    since: int = 1


OPERATORS: Mapping[tuple[str, str], Rule] = MappingProxyType(
    {
        ("", "Attention"): Rule(attention.onnx_attention, 23),
        ("", "GatherND"): Rule(indexing.gather_nd, 11),
        ("", "QLinearConv"): Rule(qlinear.convolution, 10),
        ("", "QLinearMatMul"): Rule(qlinear.matmul, 10),
        ("", "RotaryEmbedding"): Rule(rotary.onnx_rotary, 23),
        ("", "SimplifiedLayerNormalization"): Rule(norms.rms_norm),
        ("", "Swish"): Rule(activations.swish, 24),
        (MICROSOFT, "Attention"): Rule(multi_head.packed_attention),
        (MICROSOFT, "BiasGelu"): Rule(activations.bias_gelu),
        (MICROSOFT, "DequantizeLinear"): Rule(qlinear.dequantize),
        (MICROSOFT, "DynamicQuantizeLSTM"): Rule(recurrent.dynamic_lstm),
        (MICROSOFT, "DynamicQuantizeMatMul"): Rule(matmul.dynamic_quantize_matmul),
        (MICROSOFT, "EmbedLayerNormalization"): Rule(embedding.embed_layer_norm),
        (MICROSOFT, "FastGelu"): Rule(activations.fast_gelu),
        (MICROSOFT, "FusedConv"): Rule(fused.convolution),
        (MICROSOFT, "FusedGemm"): Rule(fused.gemm),
        (MICROSOFT, "FusedMatMul"): Rule(fused.matmul),
        (MICROSOFT, "GatherBlockQuantized"): Rule(matmul.gather_block_quantized),
        (MICROSOFT, "Gelu"): Rule(activations.gelu),
        (MICROSOFT, "GroupQueryAttention"): Rule(group_query.attention),
        (MICROSOFT, "MatMulBnb4"): Rule(matmul.matmul_bnb4),
        (MICROSOFT, "MatMulIntegerToFloat"): Rule(matmul.matmul_integer_to_float),
        (MICROSOFT, "MatMulNBits"): Rule(matmul.matmul_nbits),
        (MICROSOFT, "MoE"): Rule(experts.mixture),
        (MICROSOFT, "MultiHeadAttention"): Rule(multi_head.attention),
        (MICROSOFT, "QAttention"): Rule(multi_head.quantized_attention),
        (MICROSOFT, "QEmbedLayerNormalization"): Rule(embedding.q_embed_layer_norm),
        (MICROSOFT, "QGemm"): Rule(qlinear.gemm),
        (MICROSOFT, "QLinearAdd"): Rule(qlinear.binary("Add")),
        (MICROSOFT, "QLinearAveragePool"): Rule(qlinear.pool("AveragePool", *_POOL)),
        (MICROSOFT, "QLinearConcat"): Rule(qlinear.concat),
        (MICROSOFT, "QLinearConv"): Rule(qlinear.convolution),
        (MICROSOFT, "QLinearGlobalAveragePool"): Rule(qlinear.pool("GlobalAveragePool")),
        (MICROSOFT, "QLinearLeakyRelu"): Rule(qlinear.leaky_relu),
        (MICROSOFT, "QLinearMul"): Rule(qlinear.binary("Mul")),
        (MICROSOFT, "QLinearReduceMean"): Rule(qlinear.mean),
        (MICROSOFT, "QLinearSigmoid"): Rule(qlinear.sigmoid),
        (MICROSOFT, "QLinearSoftmax"): Rule(qlinear.softmax),
        (MICROSOFT, "QLinearWhere"): Rule(qlinear.where),
        (MICROSOFT, "QuantizeLinear"): Rule(qlinear.quantize),
        (MICROSOFT, "QuickGelu"): Rule(activations.quick_gelu),
        (MICROSOFT, "RotaryEmbedding"): Rule(rotary.contrib_rotary),
        (MICROSOFT, "SkipLayerNormalization"): Rule(norms.skip_layer_norm),
        (MICROSOFT, "SkipSimplifiedLayerNormalization"): Rule(norms.skip_rms_norm),
        (MICROSOFT, "TransposeMatMul"): Rule(fused.matmul),
        (ML, "ArrayFeatureExtractor"): Rule(ml.columns),
        (ML, "Binarizer"): Rule(ml.binarizer),
        (ML, "FeatureVectorizer"): Rule(ml.vectorizer),
        (ML, "Imputer"): Rule(ml.imputer),
        (ML, "LinearClassifier"): Rule(ml.linear_classifier),
        (ML, "LinearRegressor"): Rule(ml.linear_regressor),
        (ML, "Normalizer"): Rule(ml.normalizer),
        (ML, "SVMRegressor"): Rule(ml.svm_regressor),
        (ML, "Scaler"): Rule(ml.scaler),
        (ML, "TreeEnsemble"): Rule(ml.tree_ensemble, 5),
        (ML, "TreeEnsembleClassifier"): Rule(ml.tree_classifier),
        (ML, "TreeEnsembleRegressor"): Rule(ml.tree_regressor),
        ("", "TensorScatter"): Rule(attention.tensor_scatter, 24),
    }
)
"""By domain, empty for ONNX's own, and type."""
