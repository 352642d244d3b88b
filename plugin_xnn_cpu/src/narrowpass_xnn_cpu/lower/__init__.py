"""From ONNX operators to steps: one module for each family, with its rules beside it."""
