"""Operators that onnx's evaluator gets wrong, or does not know, put right."""
