"""Tensors of any size, written in pieces: the safetensors format, hashes, and which are equal."""
