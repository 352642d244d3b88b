"""Models: read, written, verified, inferred, and what is asked of their nodes and values."""

from narrowpass_ir._deferred import install

# Before the first module of this library, each of which imports onnx_ir.
install()
del install
