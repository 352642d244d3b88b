"""Repair of quantized models: every format is rewritten to Q/DQ, and checked against limits.

`quantization` reads scales and zero points; `qoperator` and `dynamic` rewrite operators that
compute with integers; `weights`, `activations`, `biases` and `data_movement` change quantization
where that is lossless; `operators` finds the int8 operators, and `checks` compares them with the
limits of the target.
"""
