"""What is known about operators beyond their schemas: exact ones, and those that jump."""

from __future__ import annotations

EXACT = frozenset(
    "Identity Reshape Transpose Squeeze Unsqueeze Concat Slice Split Gather GatherElements GatherND "
    "Expand Tile Pad DepthToSpace SpaceToDepth Flatten Neg Abs Relu Max Min Clip Where MaxPool "
    "Dropout Constant Shape Size ScatterElements ScatterND Trilu ReverseSequence EyeLike "
    "GlobalMaxPool ReduceMax ReduceMin ConstantOfShape OneHot Compress Scatter CastLike Cast "
    "CenterCropPad SequenceAt SequenceConstruct SplitToSequence SequenceInsert SequenceErase "
    "ConcatFromSequence Optional OptionalGetElement TensorScatter BitCast "
    "Binarizer ArrayFeatureExtractor".split()
)
"""Operators whose results are elements of their operands, whatever the order of computation."""

DISCONTINUOUS = frozenset(
    "Floor Ceil Round Sign Less LessOrEqual Greater GreaterOrEqual Equal ArgMax ArgMin TopK Mod "
    "NonZero Unique Hardmax ThresholdedRelu Shrink QuantizeLinear DynamicQuantizeLinear "
    "NonMaxSuppression IsInf IsNaN Compress BitShift And Or Xor Not Where Cast CastLike MaxUnpool "
    "Binarizer OneHot Range Loop BitCast TreeEnsemble TreeEnsembleRegressor MaxPool "
    "TreeEnsembleClassifier LinearClassifier SVMClassifier Scaler LabelEncoder CategoryMapper "
    "OneHotEncoder Imputer BitwiseAnd BitwiseOr BitwiseXor BitwiseNot Div RoiAlign GridSample "
    "Resize Upsample Tan If MaxRoiPool LpNormalization Normalizer Scan".split()
)
"""Operators that make much of a small error of an operand: they read exact values only."""

DRAWN_BY_CHANCE = frozenset(
    "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike".split()
)
"""Operators whose results are random: types and shapes are judged, not elements."""
