"""The execution provider: programs that call onnxruntime run on the backend ``xnn-cpu``."""
