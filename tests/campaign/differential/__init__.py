"""Random models from ONNX's schemas, judged by two oracles on every backend.

`draft` draws one node from its schema, `recipes` know what operands an operator takes, `builder`
puts nodes together, `oracles` say what is right, `subjects` are what is tested, `shrink` reduces a
failing case, and `campaign` runs many.
"""
