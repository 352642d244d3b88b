"""Modules that onnx_ir imports at once, and that are imported when they are used."""
