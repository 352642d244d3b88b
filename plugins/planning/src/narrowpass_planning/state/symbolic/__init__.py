"""Tensors as functions of their indices: what graphs compute from the rows of caches."""
