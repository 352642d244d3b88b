"""Random models from ONNX's schemas, judged by two oracles on every backend.

`draft` draws one node from its schema, `recipes` know what operands an operator takes, `builder`
puts nodes together, `oracles` say what is right, `subjects` are what is tested, `shrink` makes a
failing case small, and `campaign` runs many.
"""
