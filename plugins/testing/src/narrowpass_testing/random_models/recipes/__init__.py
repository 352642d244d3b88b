"""Recipes of ONNX's operators, and of layers as exporters write them.

A recipe adds operands to a draft in the order of the schema. The draft solves types, so that a
recipe speaks of shapes, of ranges of values, and of attributes; an attribute that the version of
the operator lacks is left out by the draft.
"""

from __future__ import annotations

from narrowpass_testing.random_models._builder import Recipes
from narrowpass_testing.random_models.recipes import (
    contrib,
    control,
    elementwise,
    images,
    learning,
    movement,
    narrow,
    networks,
    qdq,
    quantized,
    reductions,
    signals,
    written,
)

_MODULES = (
    elementwise,
    movement,
    reductions,
    networks,
    images,
    quantized,
    signals,
    control,
    learning,
    qdq,
    narrow,
    written,
    contrib,
)

RECIPES = Recipes()
"""Those of all operators of ONNX that are drawn, and these groups of blocks: ``qdq`` (operators
between DequantizeLinear and QuantizeLinear), ``narrow`` (elements of few bits), ``written``
(functions, normalizations, attention and shapes as exporters write them) and ``contrib``
(operators of onnxruntime's domain)."""
for _module in _MODULES:
    RECIPES |= _module.TABLE

WITHOUT = {
    ("", "ImageDecoder"): "needs Pillow and files of images",
    ("", "MelWeightMatrix"): "onnxruntime has no kernel, and its scalars decide its shape",
    ("", "StringNormalizer"): "strings: compared by the ONNX node suite",
    ("", "StringConcat"): "strings: compared by the ONNX node suite",
    ("", "StringSplit"): "strings: compared by the ONNX node suite",
    ("", "RegexFullMatch"): "strings: compared by the ONNX node suite",
    ("", "TfIdfVectorizer"): "its pools follow rules that the node suite has cases for",
    ("", "Constant"): "drawn as an operand of the others, as initializers are",
    ("", "Optional"): "an empty optional has no array to compare",
    ("", "OptionalGetElement"): "see Optional",
    ("", "OptionalHasElement"): "see Optional",
    ("", "SequenceEmpty"): "a sequence of nothing has no array to compare",
    ("", "Scatter"): "deprecated: ScatterElements under another name",
    ("", "Upsample"): "deprecated: Resize under another name",
    ("", "MaxUnpool"): "needs the indices of a MaxPool of the same sizes",
    (
        "",
        "DeformConv",
    ): "onnx's evaluator and onnxruntime have kernels for few forms; see node suite",
    ("ai.onnx.ml", "CastMap"): "maps are no arrays",
    ("ai.onnx.ml", "DictVectorizer"): "maps are no arrays",
    ("ai.onnx.ml", "ZipMap"): "maps are no arrays",
    ("ai.onnx.ml", "CategoryMapper"): "strings",
    ("ai.onnx.ml", "FeatureVectorizer"): "no oracle runs what its schema allows",
    ("ai.onnx.ml", "SVMClassifier"): "the oracles differ in scores; plugin tests compare it",
    ("ai.onnx.preview", "FlexAttention"): "a preview that no oracle has",
}
"""Operators without a recipe, each with the reason; the training domain is not drawn at all."""
