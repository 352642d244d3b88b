"""Ensembles of decision trees: from ONNX attributes to the arrays that the kernel traverses."""
