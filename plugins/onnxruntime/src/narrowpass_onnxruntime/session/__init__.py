"""A class with the interface of ``onnxruntime.InferenceSession`` that runs models on narrowpass.

onnxruntime is imported only for what the caller uses of it: its exception classes, `OrtValue` and
`SessionOptions`.
"""
