"""Kernels in numpy, for what XNNPACK has not: integers, conditions, indices, shapes."""
