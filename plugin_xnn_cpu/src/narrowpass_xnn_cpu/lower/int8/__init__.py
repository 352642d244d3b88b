"""Operators between DequantizeLinear and QuantizeLinear, lowered to int8 kernels."""
