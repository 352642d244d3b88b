"""Models that are quantized already: read in every form, written in one, held to the limits.

`quantization` reads scales and zero points; `forms` and `dynamic` rewrite operators that compute
with integers; `integers` those that move integers; `weights`, `activations`, `biases` and
`data_movement` repair what can be without loss; `operators` finds what is int8, and `checks` judges
it.
"""
