"""Matmuls with constant and computed operands, and what ends with them."""
