"""Quantized weights in memory, in temporary files, and in models."""
