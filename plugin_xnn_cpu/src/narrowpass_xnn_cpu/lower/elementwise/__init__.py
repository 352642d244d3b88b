"""Elementwise operators, conversions and reductions."""
