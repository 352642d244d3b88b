"""Which operators are expanded, and what writes each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import onnx_ir as ir

from narrowpass_expansion import (
    activations,
    attention,
    bnb4,
    cache,
    classifiers,
    embedding,
    grouped,
    indexing,
    multi_head,
    norms,
    packed,
    products,
    qlinear,
    quantized,
    recurrent,
    rotary,
    tabular,
)
from narrowpass_expansion.emitter import Emitter

MICROSOFT = "com.microsoft"
ML = classifiers.DOMAIN

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
"""Writes the nodes, and gives a value for each output, None where nobody asks for one."""


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
        ("", "SimplifiedLayerNormalization"): Rule(norms.simplified),
        ("", "Swish"): Rule(activations.swish, 24),
        (MICROSOFT, "Attention"): Rule(packed.attention),
        (MICROSOFT, "BiasGelu"): Rule(activations.bias_gelu),
        (MICROSOFT, "DequantizeLinear"): Rule(qlinear.dequantize),
        (MICROSOFT, "DynamicQuantizeLSTM"): Rule(recurrent.dynamic_lstm),
        (MICROSOFT, "DynamicQuantizeMatMul"): Rule(quantized.dynamic_product),
        (MICROSOFT, "EmbedLayerNormalization"): Rule(embedding.embed),
        (MICROSOFT, "FastGelu"): Rule(activations.fast_gelu),
        (MICROSOFT, "FusedConv"): Rule(products.convolution),
        (MICROSOFT, "FusedGemm"): Rule(products.gemm),
        (MICROSOFT, "FusedMatMul"): Rule(products.matmul),
        (MICROSOFT, "GatherBlockQuantized"): Rule(quantized.gather),
        (MICROSOFT, "Gelu"): Rule(activations.gelu),
        (MICROSOFT, "GroupQueryAttention"): Rule(grouped.attention),
        (MICROSOFT, "MatMulBnb4"): Rule(bnb4.product),
        (MICROSOFT, "MatMulIntegerToFloat"): Rule(quantized.integer_product),
        (MICROSOFT, "MatMulNBits"): Rule(quantized.product),
        (MICROSOFT, "MultiHeadAttention"): Rule(multi_head.attention),
        (MICROSOFT, "QAttention"): Rule(packed.quantized_attention),
        (MICROSOFT, "QEmbedLayerNormalization"): Rule(embedding.embed_quantized),
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
        (MICROSOFT, "SkipLayerNormalization"): Rule(norms.skip),
        (MICROSOFT, "SkipSimplifiedLayerNormalization"): Rule(norms.skip_simplified),
        (MICROSOFT, "TransposeMatMul"): Rule(products.matmul),
        (ML, "ArrayFeatureExtractor"): Rule(tabular.columns),
        (ML, "Binarizer"): Rule(tabular.binarizer),
        (ML, "FeatureVectorizer"): Rule(tabular.vectorizer),
        (ML, "Imputer"): Rule(tabular.imputer),
        (ML, "LinearClassifier"): Rule(classifiers.linear_classifier),
        (ML, "LinearRegressor"): Rule(tabular.linear_regressor),
        (ML, "Normalizer"): Rule(tabular.normalizer),
        (ML, "SVMRegressor"): Rule(tabular.svm_regressor),
        (ML, "Scaler"): Rule(tabular.scaler),
        (ML, "TreeEnsemble"): Rule(classifiers.tree_ensemble, 5),
        (ML, "TreeEnsembleClassifier"): Rule(classifiers.tree_classifier),
        (ML, "TreeEnsembleRegressor"): Rule(classifiers.tree_regressor),
        ("", "TensorScatter"): Rule(cache.tensor_scatter, 24),
    }
)
"""By domain, empty for ONNX's own, and type."""
