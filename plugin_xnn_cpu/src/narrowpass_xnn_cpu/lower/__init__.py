"""Lowering of ONNX operators to `Computation`s: a folder for each family, rules in each module."""
